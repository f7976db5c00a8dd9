# SPDX-License-Identifier: Apache-2.0
"""Settings are read strictly, and every error says what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from ascend_specpatch.settings import Settings, SettingsError, current


def test_nothing_set_is_everything_on_and_lenient() -> None:
    assert Settings.from_environ({}) == Settings(True, (), (), False, None)
    assert Settings.from_environ({"ASCEND_SPECPATCH": " ", "ASCEND_SPECPATCH_DISABLE": " , "}) == Settings()


@pytest.mark.parametrize("word", ["1", "true", "YES", " on "])
def test_switches_take_the_usual_words_for_on(word: str) -> None:
    assert Settings.from_environ({"ASCEND_SPECPATCH": word, "ASCEND_SPECPATCH_STRICT": word}) == Settings(
        strict=True
    )


@pytest.mark.parametrize("word", ["0", "false", "NO", " off "])
def test_switches_take_the_usual_words_for_off(word: str) -> None:
    assert Settings.from_environ({"ASCEND_SPECPATCH": word}) == Settings(enabled=False)
    assert Settings.from_environ({"ASCEND_SPECPATCH_STRICT": word}) == Settings(strict=False)


def test_lists_are_split_and_stripped() -> None:
    found = Settings.from_environ(
        {"ASCEND_SPECPATCH_DISABLE": "a.b, spec_decode.* ,", "ASCEND_SPECPATCH_ENABLE": "c.d"}
    )
    assert (found.disable, found.enable) == (("a.b", "spec_decode.*"), ("c.d",))


@pytest.mark.parametrize("kernels", ["triton", "torch", "upstream"])
def test_kernels(kernels: str) -> None:
    assert Settings.from_environ({"ASCEND_SPECPATCH_KERNELS": kernels.upper()}).kernels == kernels


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ASCEND_SPECPATCH", "maybe", "ASCEND_SPECPATCH=maybe: use 1 (true, yes, on) or 0 (false, no, off)"),
        ("ASCEND_SPECPATCH", "2", "use 1"),
        ("ASCEND_SPECPATCH_STRICT", "warn", "ASCEND_SPECPATCH_STRICT=warn: use 1"),
        (
            "ASCEND_SPECPATCH_KERNELS",
            "cuda",
            "ASCEND_SPECPATCH_KERNELS=cuda: use one of triton, torch, upstream",
        ),
        ("ASCEND_SPECPATCH_DISABLED", "a", "did you mean ASCEND_SPECPATCH_DISABLE?"),
        ("ASCEND_SPECPATCH_KERNEL", "torch", "did you mean ASCEND_SPECPATCH_KERNELS?"),
    ],
)
def test_what_cannot_be_understood_is_an_error(variable: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({variable: value})
    assert says in str(caught.value)


def test_variables_kubernetes_makes_for_a_service_of_our_name_are_no_mistake() -> None:
    environ = {
        f"ASCEND_SPECPATCH_{suffix}": "x"
        for suffix in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_ADDR")
    }
    assert Settings.from_environ(environ) == Settings()


def test_off_leaves_the_other_variables_unread() -> None:
    environ = {"ASCEND_SPECPATCH": "0", "ASCEND_SPECPATCH_STRICT": "warn", "ASCEND_SPECPATCH_DISBALE": "a"}
    assert Settings.from_environ(environ) == Settings(enabled=False)


def test_settings_are_frozen_and_current_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_KERNELS", "torch")
    assert current().kernels == "torch"
    with pytest.raises(dataclasses.FrozenInstanceError):
        current().strict = True  # type: ignore[misc]

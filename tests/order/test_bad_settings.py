# SPDX-License-Identifier: Apache-2.0
"""Settings nobody can mean: each ends in one clear message and in hosts that nothing was done to."""

from __future__ import annotations

import json

from .conftest import UNPATCHED, FakeHosts, visible

WORD = "use 1 (true, yes, on) or 0 (false, no, off)"
KERNELS = "use one of triton, torch, upstream"

# variable, value, what the message says
BAD = [
    *(
        (variable, value, f"{variable}={value}: {WORD}")
        for variable in ("ASCEND_SPECPATCH", "ASCEND_SPECPATCH_STRICT")
        for value in ("2", "-1", "maybe", "enabled", "None", "01", "1.0", "t", "1 1", "{}", "'1'")
    ),
    *(
        ("ASCEND_SPECPATCH_KERNELS", value, f"ASCEND_SPECPATCH_KERNELS={value}: {KERNELS}")
        for value in ("cuda", "1", "0", "triton,torch", "tritn", "*")
    ),
    *(
        (variable, name, f"{variable}: no patch is named {name.strip()}; {hint}")
        for variable in ("ASCEND_SPECPATCH_DISABLE", "ASCEND_SPECPATCH_ENABLE")
        for name, hint in (
            ("spec_decode.draftre", "did you mean spec_decode.drafter?"),
            ("worker.lasy", "did you mean worker.lazy?"),
            ("spec_decod", "did you mean spec_decode?"),
            ("model_runner.*x", "did you mean model_runner?"),
            ("Worker", "did you mean worker?"),
            ("[", "known: worker.lazy,"),
            ("0", "known: worker.lazy,"),
            ("os.system('true')", "known: worker.lazy,"),
        )
    ),
    ("ASCEND_SPECPATCH_DISABLE", "worker,spec_decode.drafter,workr", "named workr; did you mean worker?"),
    ("ASCEND_SPECPATCH_DISABLE", "worker;spec_decode", "named worker;spec_decode; did you mean"),
    ("ASCEND_SPECPATCH_DISABLE", "worker\nspec_decode", "named worker\\nspec_decode; did you mean"),
    ("ASCEND_SPECPATCH_DISABLE", "x" * 10_000, f"named {'x' * 80}...; known:"),
    ("ASCEND_SPECPATCH_DISABLE", "w\udcffrker", "named w\\udcffrker; did you mean worker?"),
    ("ASCEND_SPECPATCH_STRICT", "\udcff", f"ASCEND_SPECPATCH_STRICT=\\udcff: {WORD}"),
    ("ASCEND_SPECPATCH_DISABLED", "worker", "did you mean ASCEND_SPECPATCH_DISABLE?"),
    ("ASCEND_SPECPATCH_DISBALE", "worker", "did you mean ASCEND_SPECPATCH_DISABLE?"),
    ("ASCEND_SPECPATCH_ENABLED", "worker", "did you mean ASCEND_SPECPATCH_ENABLE?"),
    ("ASCEND_SPECPATCH_STRIKT", "1", "did you mean ASCEND_SPECPATCH_STRICT?"),
    ("ASCEND_SPECPATCH_KERNEL", "torch", "did you mean ASCEND_SPECPATCH_KERNELS?"),
]

# A fork for each setting: lenient, then strict.
EACH = """
import logging, importlib_metadata, packaging.version
from importlib import import_module

said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("vllm.ascend_specpatch").addHandler(Keep())

def lenient():
    ascend_specpatch.arm()
    try:
        return state()
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")

def strict():
    os.environ.setdefault("ASCEND_SPECPATCH_STRICT", "1")
    ascend_specpatch.arm()
    try:
        import vllm
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
    return "vllm" in sys.modules

for variable, value in json.loads(os.environ.pop("BAD")):
    for run in lenient, strict:
        reader, writer = os.pipe()
        if not os.fork():
            os.environ[variable] = value
            found = run()
            print(json.dumps([found, said]), file=os.fdopen(writer, "w"), flush=True)
            os._exit(0)
        os.close(writer)
        print(os.fdopen(reader).read(), end="")
        os.wait()
"""


def test_a_setting_that_cannot_be_understood_changes_nothing_and_says_what_is_wrong(
    fake_hosts: FakeHosts,
) -> None:
    assert len(BAD) >= 50
    done = fake_hosts.run(EACH, BAD=json.dumps([(variable, value) for variable, value, _ in BAD]))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(BAD)
    for (variable, value, says), lenient, strict in zip(BAD, lines[::2], lines[1::2], strict=True):
        case = f"{variable}={value[:40]!r}"
        state, said = lenient
        assert len(said) == 1, (case, said)
        assert says in said[0], (case, said)
        assert said[0].isprintable(), case
        if variable == "ASCEND_SPECPATCH_STRICT":  # whoever set it wanted to be stopped
            assert state is None, case
        else:
            assert visible(state) == UNPATCHED, case
            assert set(state["states"].values()) == {"refused"}, case
            assert "Nothing is patched" in said[0], case
        loaded, said = strict
        assert not loaded, case
        assert says in said[0], (case, said)

# SPDX-License-Identifier: Apache-2.0
"""model_runner.drafter_selection

What: ``NPUModelRunner`` builds the patched proposers, draft_model among them, and gives a draft model the
    padded batches and the attention metadata of its own KV cache group, as it does for heads.
Why: the host knows no draft_model, and asks ``use_eagle()`` or for its one proposer class where it means "a
    proposer that runs a model".
How: the module's ``get_spec_decode_method`` also knows draft_model; its name ``AscendEagleProposer``, which
    it uses for isinstance checks only, stands for the family there; ``sample_tokens`` sees a configuration
    whose ``use_eagle()`` includes draft_model (in no other method: the scheduler, prefix caching and vLLM's
    own checks must keep telling the two apart).
Until: vllm-ascend selects a draft-model proposer itself (0.17.0rc1; not rightly before 0.23.0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ascend_specpatch import is_applied

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # What is replaced or wrapped.
    "vllm_ascend.spec_decode:get_spec_decode_method",
    "vllm_ascend.worker.model_runner_v1:AscendEagleProposer",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sample_tokens",
    "vllm_ascend.worker.model_runner_v1:get_spec_decode_method",
    # Who uses those names, and what is asked of the speculative configuration.
    "vllm.config.speculative:SpeculativeConfig.use_eagle",
    "vllm.config.speculative:SpeculativeConfig.uses_draft_model",
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer.validate_same_kv_cache_group",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attention_metadata",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._get_drafter",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
)


class DraftsOnPaddedBatches:
    """Reads as the speculative configuration it is given, but counts draft_model to the eagle family."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def use_eagle(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def select_with(host_selection: Callable[..., Any], proposers: Any) -> Callable[..., Any]:
    """``get_spec_decode_method`` that also knows draft_model."""

    @functools.wraps(host_selection)
    def get_spec_decode_method(method: str, vllm_config: Any, device: Any, runner: Any) -> Any:
        needed = ("spec_decode.draft_model_proposer", "model_runner.propose_draft_token_ids")
        if method != "draft_model" or not is_applied(needed[0]):
            return host_selection(method, vllm_config, device, runner)
        if not is_applied(needed[1]):
            raise ValueError(
                f"speculative method 'draft_model' needs the patch {needed[1]}, which is not applied here: "
                "`ascend-specpatch status` says why (ASCEND_SPECPATCH_DISABLE may name it)"
            )
        return proposers.AscendDraftModelProposer(vllm_config, device, runner)

    return get_spec_decode_method


def apply(edit: Edit) -> None:
    from vllm_ascend.spec_decode import eagle_proposer

    host = edit.module
    runner = host.NPUModelRunner
    edit.set(host, "get_spec_decode_method", select_with(host.get_spec_decode_method, eagle_proposer))
    family = (eagle_proposer.SpecDecodeBaseProposer, eagle_proposer.AscendEagleProposer)
    edit.set(host, "AscendEagleProposer", family, aliases=False)

    host_sample_tokens = runner.sample_tokens

    @functools.wraps(host_sample_tokens)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.speculative_config
        if config is None or not config.uses_draft_model():
            return host_sample_tokens(self, *args, **kwargs)
        self.speculative_config = DraftsOnPaddedBatches(config)
        try:
            return host_sample_tokens(self, *args, **kwargs)
        finally:
            self.speculative_config = config

    edit.set(runner, "sample_tokens", sample_tokens)

    host_initialize_kv_cache = runner.initialize_kv_cache

    @functools.wraps(host_initialize_kv_cache)
    def initialize_kv_cache(self: Any, kv_cache_config: Any) -> None:
        host_initialize_kv_cache(self, kv_cache_config)
        if isinstance(self.drafter, eagle_proposer.SpecDecodeBaseProposer):
            # All passes share one attention metadata; vLLM checks this at the same point.
            self.drafter.validate_same_kv_cache_group(self.kv_cache_config)

    edit.set(runner, "initialize_kv_cache", initialize_kv_cache)

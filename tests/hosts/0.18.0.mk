# vllm 0.18.0 + vllm-ascend 0.18.0; the packages they run on are pinned in 0.18.0.txt. What the lines mean is in 0.16.0.mk.
HOST_PYTHON := 3.11
HOST_VLLM := vllm==0.18.0
HOST_VLLM_BUILD := VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.18.0

# vllm 0.16.0 + vllm-ascend 0.16.0rc1; the packages they run on are pinned in 0.16.0.txt.
# The wheel of vllm-ascend is for CPython 3.11.
HOST_PYTHON := 3.11
# From source and without a device, as on an NPU machine: the published wheel holds 1.2 GB of CUDA code. Without the
# override its version would be 0.16.0+empty, which neither pip nor vllm-ascend takes for 0.16.0.
HOST_VLLM := vllm==0.16.0
HOST_VLLM_BUILD := VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.16.0

# SPDX-License-Identifier: Apache-2.0
"""How Ascend's SpecDecodeBaseProposer drafts: the first pass, the later passes, and the loop over them."""

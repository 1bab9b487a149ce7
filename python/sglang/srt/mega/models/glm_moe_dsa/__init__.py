# SPDX-License-Identifier: Apache-2.0
"""GLM-5.x (GlmMoeDsa): sparse multi-head latent attention, MoE."""

# SPDX-License-Identifier: Apache-2.0
"""Kimi K3: Kimi delta attention, latent attention, latent MoE."""

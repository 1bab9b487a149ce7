# SPDX-License-Identifier: Apache-2.0
"""Makes hop_world importable beside the tests; one torch thread, as the tensors are tiny."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

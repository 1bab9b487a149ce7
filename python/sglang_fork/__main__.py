# SPDX-License-Identifier: Apache-2.0
import sys

from sglang_fork.cli import main

sys.exit(main(sys.argv[1:]))

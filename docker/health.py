# SPDX-License-Identifier: Apache-2.0
"""The images' health check: exit status 0 when the server on PORT says it is healthy."""

import os
import sys
import urllib.request

try:
    port = os.environ.get("PORT", "30000")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=4) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"not healthy: {error}")

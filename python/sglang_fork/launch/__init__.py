# SPDX-License-Identifier: Apache-2.0
"""Starting, watching and stopping the server of a preset."""

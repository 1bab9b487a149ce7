# SPDX-License-Identifier: Apache-2.0
"""One module a command.

A module ``commands/foo_bar.py`` is the command ``foo-bar``. It has ``HELP`` (one line),
``add_arguments(parser)`` and ``run(args) -> int``; ``cli.py`` finds it by its file name. Importing it may
use the standard library only.
"""

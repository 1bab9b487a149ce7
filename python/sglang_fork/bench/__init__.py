# SPDX-License-Identifier: Apache-2.0
"""Measurements: the captured step of a rank slice, the kernels beside their stock ops, a launched server.

``record``    one measurement, one line of JSON
``stats``     medians, bootstrap intervals, balanced order
``slices``    production shapes of one tensor-parallel rank, fewer layers
``routing``   which experts a step's rows choose: seeded, the same for every arm
``step``      the worker that captures and replays a step inside SGLang
``report``    tables and plots from the lines
"""

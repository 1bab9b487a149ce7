# SPDX-License-Identifier: Apache-2.0
"""Slot lists and plans: what is selected, what falls back, what stops the server."""

import logging

import pytest

from sglang.srt.mega import plan as plans
from sglang.srt.mega import slots as s

BITWISE = s.Numerics(s.BITWISE, test="t")


def slot(name, **kwargs):
    kwargs.setdefault("min_rows", 1)
    kwargs.setdefault("max_rows", 8)
    return s.Slot(name=name, numerics=BITWISE, stock="part", entries=("entry",), **kwargs)


TABLE = s.table(
    [slot("route"), slot("mkm", needs=("route",)), slot("hop", max_rows=4), slot("wide", default=False)]
)


def available(_slot):
    return None


def test_no_list_selects_the_defaults_and_an_empty_one_nothing():
    assert s.select(TABLE, None) == s.Selection(("route", "mkm", "hop"), explicit=False)
    assert s.select(TABLE, "") == s.Selection((), explicit=True)
    assert s.select(TABLE, " hop , route") == s.Selection(("route", "hop"), explicit=True)


def test_unknown_slot_names_the_near_ones():
    with pytest.raises(s.SlotListError, match=r"unknown megakernel slot 'rote'; near: route"):
        s.select(TABLE, "rote")


def test_a_list_that_lacks_a_needed_slot_names_it():
    with pytest.raises(s.SlotListError, match="mkm needs route"):
        s.select(TABLE, "mkm,hop")


def test_declarations_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="declared twice"):
        s.table([slot("a"), slot("a")])
    with pytest.raises(ValueError, match="needs b, which no slot declares"):
        s.table([slot("a", needs=("b",))])
    with pytest.raises(ValueError, match=r"rows 5\.\.4"):
        slot("a", min_rows=5, max_rows=4)
    with pytest.raises(ValueError, match="tolerance numerics with rtol 0"):
        s.Numerics(s.TOLERANCE, test="t")


def test_a_plan_gives_every_stock_choice_a_reason():
    plan = plans.make_plan(TABLE, s.select(TABLE, None), [1, 8], available)
    assert plan.kernels(1) == {"route", "mkm", "hop"}
    assert plan.kernels(8) == {"route", "mkm"}
    assert all(choice.kernel or choice.reason for choice in plan.choices)
    assert "serves 1-4 rows" in plan.render() and "opt-in" in plan.render()


def test_an_unavailable_default_slot_falls_back_with_a_log_line_and_takes_its_dependants(caplog):
    def availability(slot):
        if slot.name == "route":
            return plans.Unavailable(plans.Cause.CONFIG, "EP is on", "drop --ep-size")
        return None

    with caplog.at_level(logging.INFO, logger=plans.logger.name):
        plan = plans.make_plan(TABLE, s.select(TABLE, None), [1], availability)
    assert plan.kernels(1) == {"hop"}
    assert "slot route runs stock: EP is on (configuration)" in caplog.text
    assert "needs route, which runs stock" in plan.render()


@pytest.mark.parametrize(
    ("cause", "stops"),
    [(plans.Cause.CONFIG, True), (plans.Cause.WEIGHTS, False), (plans.Cause.DEVICE, False)],
)
def test_a_listed_slot_stops_the_server_only_for_a_contradicting_configuration(cause, stops):
    def availability(slot):
        return (
            plans.Unavailable(cause, "page size is 1", "pass --page-size 64") if slot.name == "hop" else None
        )

    selection = s.select(TABLE, "hop")
    if stops:
        with pytest.raises(
            plans.PlanError, match=r"slot hop was requested but page size is 1.*pass --page-size 64"
        ):
            plans.make_plan(TABLE, selection, [1], availability)
    else:
        assert plans.make_plan(TABLE, selection, [1], availability).kernels(1) == set()


def test_a_width_where_stock_is_faster_runs_stock_there_alone():
    def slower(slot, rows):
        return "stock 3 us faster" if (slot.name, rows) == ("route", 8) else None

    plan = plans.make_plan(TABLE, s.select(TABLE, None), [4, 8], available, slower)
    assert plan.kernels(4) == {"route", "mkm", "hop"}
    assert plan.kernels(8) == set()

# SPDX-License-Identifier: Apache-2.0
"""The guarded call and parity mode, on a toy layer that writes a state buffer."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from sglang.srt.mega import slots as s
from sglang.srt.mega import step as steps
from sglang.srt.mega.parity import Choices, ParityError, ParityRunner, difference


class Layer:
    """Doubles its input and adds it into row ``view.row`` of ``state``."""

    def __init__(self, layer_id=3):
        self.layer_id = layer_id
        self.state = torch.zeros(4, 2)
        self.stock_calls = 0

    def part(self, x):
        self.stock_calls += 1
        self.state[1] += x
        return 2 * x

    def forward(self, x):
        return steps.call("double", self, self.part, x)


def table(numerics):
    return s.table([s.Slot("double", 1, 8, numerics, stock="Layer.part", writes=("state",))])


BITWISE = table(s.Numerics(s.BITWISE, test="t"))
CLOSE = table(s.Numerics(s.TOLERANCE, test="t", rtol=1e-2))


def run(layer, kernel, slots=None):
    runner = steps.run_kernel
    if slots is not None:
        runner = ParityRunner(slots, lambda slot, layer, view: {"state": (layer.state, 1)}, rank=5)
    active = steps.ActiveStep(SimpleNamespace(), {("double", id(layer)): kernel}, runner)
    x = torch.tensor([1.0, 3.0])
    with steps.activate(active):
        assert steps.covers("double", layer)
        out = layer.forward(x)
    assert not steps.covers("double", layer)
    return out, runner


def good(layer):
    def kernel(view, x):
        layer.state[1] += x
        return x + x

    return kernel


def test_outside_a_step_and_without_a_kernel_the_stock_part_runs():
    layer = Layer()
    assert torch.equal(layer.forward(torch.ones(2)), torch.full((2,), 2.0))
    with steps.activate(steps.ActiveStep(SimpleNamespace(), {})):
        layer.forward(torch.ones(2))
    assert layer.stock_calls == 2


def test_the_kernel_replaces_the_stock_part():
    layer = Layer()
    out, _ = run(layer, good(layer))
    assert torch.equal(out, torch.tensor([2.0, 6.0])) and layer.stock_calls == 0


def test_a_step_inside_a_step_is_refused_and_the_outer_one_ends():
    outer = steps.ActiveStep(SimpleNamespace(), {})
    with pytest.raises(RuntimeError, match="already running"), steps.activate(outer), steps.activate(outer):
        pass
    with steps.activate(outer):
        pass


def test_parity_restores_the_written_buffers_and_keeps_the_stock_result():
    layer = Layer()
    out, runner = run(layer, good(layer), BITWISE)
    assert torch.equal(out, torch.tensor([2.0, 6.0]))
    assert torch.equal(layer.state[1], torch.tensor([1.0, 3.0])), "the state was written twice or not at all"
    assert layer.stock_calls == 1 and runner.seen == {"double": (2, 0.0)}


def wrong_output(layer):
    def kernel(view, x):
        layer.state[1] += x
        return 2 * x + 1

    return kernel


def wrong_state(layer):
    def kernel(view, x):
        layer.state[1] += 2 * x
        return 2 * x

    return kernel


def no_state(layer):
    return lambda view, x: 2 * x


def nan_output(layer):
    def kernel(view, x):
        layer.state[1] += x
        return torch.full_like(x, float("nan"))

    return kernel


@pytest.mark.parametrize("planted", [wrong_output, wrong_state, no_state, nan_output])
@pytest.mark.parametrize("slots", [BITWISE, CLOSE], ids=["bitwise", "tolerance"])
def test_a_planted_wrong_kernel_is_named(planted, slots):
    layer = Layer()
    with pytest.raises(ParityError, match=r"slot double, layer 3, rank 5: (output|state)"):
        run(layer, planted(layer), slots)


def test_a_difference_within_the_tolerance_passes_and_is_kept():
    layer = Layer()

    def kernel(view, x):
        layer.state[1] += x
        return 2 * x + 1e-3

    _, runner = run(layer, kernel, CLOSE)
    assert 0 < runner.seen["double"][1] < 1e-2
    with pytest.raises(ParityError):
        run(Layer(), lambda view, x: 2 * x + 1e-3, BITWISE)


class Router:
    """A chooser whose arms chose what the test says, one row a pair of values of ``x``."""

    def __init__(self, mine, theirs):
        self.mine, self.theirs = mine, theirs

    def of_kernel(self, rows):
        return self.mine

    @contextmanager
    def of_stock(self, layer):
        yield [self.theirs]


def chosen(ids, scores):
    return Choices(torch.tensor(ids), torch.tensor(scores))


CHOOSES = s.table([s.Slot("pick", 1, 8, s.Numerics(s.TOLERANCE, test="t", rtol=1e-2, ties=0.01), stock="p")])
SCORES = [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.99, 1.0]]


def pick(router, second_row):
    """A kernel right in row 0 and off by ``second_row`` in row 1, beside a stock part that doubles."""
    runner = ParityRunner(CHOOSES, lambda slot, layer, view: {}, rank=2, choosers={"pick": router})
    active = steps.ActiveStep(
        SimpleNamespace(rows=2), {("pick", id(router)): lambda view, x: 2 * x + second_row}, runner
    )
    with steps.activate(active):
        steps.call("pick", router, lambda x: 2 * x, torch.ones(2, 3))
    return runner


OFF = torch.tensor([[0.0], [1.0]])


def test_rows_that_choose_alike_are_held_to_the_tolerance():
    alike = Router(chosen([[0, 1], [1, 0]], SCORES), chosen([[1, 0], [0, 1]], SCORES))
    runner = pick(alike, 0 * OFF)
    assert runner.ties == [] and runner.rows["pick"] == 2 and runner.seen["pick"] == (1, 0.0)
    with pytest.raises(ParityError, match=r"slot pick, layer .*, rank 2: output differs"):
        pick(alike, OFF)


def test_a_tie_excuses_its_row_alone_and_is_kept():
    tie = Router(chosen([[0, 1], [0, 2]], SCORES), chosen([[0, 1], [0, 1]], SCORES))
    runner = pick(tie, OFF)
    assert [(t.slot, t.row) for t in runner.ties] == [("pick", 1)]
    assert runner.ties[0].margin == pytest.approx(0.01 / 4, rel=1e-4)
    with pytest.raises(ParityError, match="output differs"):
        pick(tie, OFF.flip(0))


@pytest.mark.parametrize("liar", ["mine", "theirs"])
def test_another_choice_that_is_no_tie_in_both_arms_scores_is_named(liar):
    flat = [[1.0, 1.0, 1.0, 1.0]] * 2
    scores = {"mine": SCORES, "theirs": SCORES} | {liar: flat}
    wrong = Router(chosen([[0, 1], [0, 3]], scores["mine"]), chosen([[0, 1], [0, 1]], scores["theirs"]))
    with pytest.raises(ParityError, match=r"slot pick.*row 1 chooses otherwise than stock by 5\.0+e-01"):
        pick(wrong, 0 * OFF)


def test_a_stock_part_whose_choice_was_not_seen_is_no_agreement():
    blind = Router(chosen([[0, 1]] * 2, SCORES), None)
    blind.of_stock = lambda layer: nullcontext([])
    with pytest.raises(ParityError, match="chose 0 times"):
        pick(blind, 0 * OFF)


def test_the_inputs_that_a_kernel_overwrites_reach_the_stock_part_unchanged():
    layer = Layer()

    def kernel(view, x):
        layer.state[1] += x
        out = 2 * x
        x.zero_()
        return out

    out, _ = run(layer, kernel, BITWISE)
    assert torch.equal(out, torch.tensor([2.0, 6.0]))


class Pair:
    """A result that parity knows only by what it stands for."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def parity_tensors(self):
        return {"sum": self.low + self.high}


@pytest.mark.parametrize(
    ("kernel_result", "stock_result"),
    [
        (object(), object()),
        (torch.ones(1), None),
        ((torch.ones(1),), torch.ones(1)),
        ({"a": torch.ones(1)}, {}),
    ],
)
def test_what_cannot_be_compared_does_not_pass(kernel_result, stock_result):
    layer = Layer()
    layer.part = lambda x: stock_result
    with pytest.raises(ParityError, match="cannot compare"):
        run(layer, lambda view, x: kernel_result, BITWISE)


def test_results_are_compared_by_what_they_stand_for():
    layer = Layer()
    layer.part = lambda x: Pair(x, x)
    run(layer, lambda view, x: Pair(0 * x, 2 * x), BITWISE)
    with pytest.raises(ParityError, match="output sum differs"):
        run(layer, lambda view, x: Pair(x, 2 * x), BITWISE)


def test_difference_is_relative_to_the_largest_value_and_strict_about_shape_and_nan():
    assert difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 0.5
    assert difference(torch.ones(2), torch.ones(3)) == float("inf")
    assert difference(torch.ones(2), torch.ones(2).double()) == float("inf")
    assert difference(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert difference(torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 1.0])) == 0.0
    assert difference(torch.tensor([1e-9]), torch.tensor([0.0])) == float("inf")
    assert difference(torch.empty(0), torch.empty(0)) == 0.0

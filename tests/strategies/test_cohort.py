"""Who is asked."""

import time

import numpy as np
import pytest
from flwr.app import RecordDict

from flwr_sdp import secure_generator, seeded_generator
from flwr_sdp.strategies.cohort import CohortGrid, poisson_cohort, wait_for_nodes
from flwr_sdp.strategies.grid_view import GridView
from tests.messages import FakeGrid
from tests.statistics_helpers import N_SIGMA, assert_detects, assert_frequency

NODES = 60
RATE = 0.3
ROUNDS = 1500


def draw(rate=RATE):
    """Return a table of who is in the cohort: a row a round, a column a node."""
    table = np.zeros((ROUNDS, NODES), dtype=bool)
    for server_round in range(ROUNDS):
        rng = seeded_generator(5, "cohort", server_round)
        table[server_round, poisson_cohort(range(NODES), rate, rng)] = True
    return table


@pytest.fixture(scope="module")
def table():
    return draw()


def fixed_size(rate=RATE):
    """A cohort of always the same size: right in its mean, wrong in everything else."""
    rng = np.random.default_rng(0)
    rows = np.arange(NODES) < round(rate * NODES)
    return np.array([rng.permutation(rows) for _ in range(ROUNDS)])


def all_or_none():
    """Nodes that are drawn together: right in the mean of every node."""
    rng = np.random.default_rng(0)
    return np.repeat(rng.random((ROUNDS, 1)) < RATE, NODES, axis=1)


def check_mean(table):
    assert_frequency(table.sum(), table.size, RATE)


def check_every_node(table):
    for column in table.T:
        assert_frequency(column.sum(), ROUNDS, RATE)


def check_size_variance(table):
    """The sample variance of n sizes has variance (mu4 - sigma^4 (n-3)/(n-1)) / n."""
    sizes = table.sum(axis=1)
    variance = NODES * RATE * (1 - RATE)
    fourth = variance * (1 + 3 * (NODES - 2) * RATE * (1 - RATE))
    error = np.sqrt((fourth - variance**2 * (ROUNDS - 3) / (ROUNDS - 1)) / ROUNDS)
    assert abs(sizes.var(ddof=1) - variance) <= N_SIGMA * error


def check_pairs(table):
    """Neighbours, within a round and across rounds, are in together as often as chance has it."""
    within = (table[:, 1:] & table[:, :-1])[:, ::2]
    across = (table[1:] & table[:-1])[::2]
    assert_frequency(within.sum(), within.size, RATE**2)
    assert_frequency(across.sum(), across.size, RATE**2)


def test_share_of_nodes_is_the_rate(table):
    """90,000 draws; false alarms at 5.7e-7. The mutant has a rate of 0.31."""
    check_mean(table)
    assert_detects(check_mean, draw(0.31))


def test_every_node_has_the_rate(table):
    """1,500 draws for each of 60 nodes; false alarms at 3.4e-5. The mutant never asks node 0."""
    check_every_node(table)
    mutant = table.copy()
    mutant[:, 0] = False
    assert_detects(check_every_node, mutant)


def test_size_of_the_cohort_varies_like_a_binomial(table):
    """1,500 sizes; false alarms at 5.7e-7. The mutants have one size, and all or nothing."""
    check_size_variance(table)
    assert_detects(check_size_variance, fixed_size())
    assert_detects(check_size_variance, all_or_none())


def test_nodes_are_drawn_one_by_one(table):
    """45,000 pairs each way; false alarms at 1.1e-6. Mutants: drawn together, drawn twice."""
    check_pairs(table)
    assert_detects(check_pairs, all_or_none())
    assert_detects(check_pairs, np.repeat(table[:750], 2, axis=0))


def test_same_stream_same_cohort():
    first, again, other = (
        poisson_cohort(range(100), 0.5, seeded_generator(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_rate_one_asks_everyone_in_order():
    assert poisson_cohort([5, 3, 9], 1.0, seeded_generator(0)) == [5, 3, 9]


def test_tiny_rate_asks_nobody():
    assert poisson_cohort(range(1000), 1e-300, secure_generator()) == []


def test_no_nodes_no_cohort():
    assert poisson_cohort([], 0.5, secure_generator()) == []


def test_cohort_keeps_node_ids_and_order():
    node_ids = [2**63 + 7, 3, 99, 1]
    cohort = poisson_cohort(node_ids, 0.999, seeded_generator(0))
    assert cohort == [node_id for node_id in node_ids if node_id in cohort]


# ------------------------------------------------------------------ waiting
def test_waiting_ends_when_enough_nodes_are_there():
    class Growing(FakeGrid):
        def get_node_ids(self):
            self.node_ids.append(len(self.node_ids))
            return list(self.node_ids)

    assert wait_for_nodes(Growing([]), 3, timeout=30.0) == [0, 1, 2]


def test_enough_nodes_need_no_waiting():
    start = time.monotonic()
    assert wait_for_nodes(FakeGrid([4, 2]), 2, timeout=0.0) == [4, 2]
    assert time.monotonic() - start < 5.0


def test_waiting_times_out_and_names_the_settings():
    with pytest.raises(TimeoutError, match=r"2 of min_available_nodes=3.*node_timeout=0.05 s"):
        wait_for_nodes(FakeGrid([1, 2]), 3, timeout=0.05)


# ------------------------------------------------------------------ what the inner strategy sees
@pytest.mark.parametrize(
    ("cohort", "minimum", "size"), [([7, 8, 9], 2, 3), ([7], 2, 2), ([], 3, 3), ([7, 8], 0, 2)]
)
def test_view_shows_the_cohort_and_stand_ins(cohort, minimum, size):
    seen = list(CohortGrid(FakeGrid(range(50)), cohort, minimum).get_node_ids())
    assert seen[: len(cohort)] == cohort
    assert len(set(seen)) == len(seen) == size
    assert all(node_id < 0 for node_id in seen[len(cohort) :])


def test_a_view_passes_on_what_it_does_not_change():
    class Whole(FakeGrid):
        run = "the run"

        def send_and_receive(self, messages, *, timeout=None):
            return [*messages, timeout]

    view = GridView(Whole([4, 2]))
    assert view.run == "the run"
    assert list(view.get_node_ids()) == [4, 2]
    assert view.send_and_receive(["a message"], timeout=3.0) == ["a message", 3.0]


def test_nothing_can_be_sent_through_the_view():
    view = CohortGrid(FakeGrid([1]), [1], 2)
    for use in (
        lambda: view.push_messages([]),
        lambda: view.pull_messages([]),
        lambda: view.send_and_receive([]),
        lambda: view.set_run(None),
    ):
        with pytest.raises(NotImplementedError):
            use()
    message = view.create_message(RecordDict(), "train", 1, "group")
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (1, "group")

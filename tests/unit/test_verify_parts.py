"""`sparkonce verify` without a broker: identities, sums, the search, the verdict, the options."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError
from confluent_kafka.admin import OffsetSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.cli.verify import command
from connectors.operations import bounded_scan, identity_search
from connectors.operations.bounded_scan import Range, TopicEnds
from connectors.operations.identity_search import (
    INPUT,
    OUTPUT,
    ROW,
    BagSum,
    Findings,
    Rows,
    Search,
)
from connectors.operations.record_identity import parse_key_id
from connectors.operations.verdict import Verdict
from connectors.operations.verify import _settled
from connectors.operations.verify_options import VerifyOptions
from tests.mock_cluster import LIST_OFFSETS, MockCluster
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline
from transactions.errors import AuthenticationError, BrokerUnavailableError, ConfigurationError


@dataclass
class Message:
    """What the identity functions ask of a consumed message."""

    k: bytes | None = None
    v: bytes | None = None
    h: list[tuple[str, bytes | None]] | None = None

    def key(self) -> bytes | None:
        return self.k

    def value(self) -> bytes | None:
        return self.v

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.h


class TestIdentity:
    """record, key, value, header:NAME, json:FIELD."""

    def test_key_and_value_are_their_bytes(self) -> None:
        """Nothing is decoded."""
        message = Message(b"\xff", b"\x00")
        assert parse_key_id("key")(message) == b"\xff"
        assert parse_key_id("value")(message) == b"\x00"

    @pytest.mark.parametrize("kind", ["key", "value", "header:id", "json:id"])
    def test_a_record_without_the_part_has_no_identity(self, kind: str) -> None:
        """It is counted apart and fails the proof, it is not one identity with all its like."""
        assert parse_key_id(kind)(Message()) is None

    def test_null_empty_and_the_border_between_key_and_value_are_told_apart(self) -> None:
        """The default identity is injective."""
        find = parse_key_id("record")
        messages = [
            Message(key, value)
            for key in (None, b"", b"a", b"ab", b"-", b"1:a")
            for value in (None, b"", b"b", b"ab", b"+")
        ]
        assert len({find(message) for message in messages}) == len(messages)

    def test_of_two_headers_with_one_name_the_last_counts(self) -> None:
        """As Kafka's own lastHeader."""
        find = parse_key_id("header:id")
        assert find(Message(h=[("id", b"1"), ("id", b"2"), ("x", b"3")])) == b"2"

    @pytest.mark.parametrize(
        ("value", "identity"),
        [
            (b'{"id": "a"}', b"a"),
            (b'{"id": 17}', b"17"),
            (b'{"id": {"b": 1, "a": 2}}', b'{"a":2,"b":1}'),
            (b'{"id": null}', None),
            (b'{"other": 1}', None),
            (b"[1]", None),
            (b"not json", None),
            (b'{"id": 18446744073709551615}', b"18446744073709551615"),
            (b'{"id": 18446744073709551616}', None),  # rounded: ...617 would be the same
            (b'{"id": -9223372036854775809}', None),
            (b'{"id": 0.5}', b"0.5"),
        ],
    )
    def test_json_fields(self, value: bytes, identity: bytes | None) -> None:
        """A JSON text and a JSON number are one identity with the same text in a key."""
        assert parse_key_id("json:id")(Message(v=value)) == identity

    def test_dots_go_into_nested_objects(self) -> None:
        """As in json:flight.id."""
        assert parse_key_id("json:flight.id")(Message(v=b'{"flight": {"id": 3}}')) == b"3"

    @pytest.mark.parametrize("text", ["", "keys", "header:", "json:", "header", "offset-header"])
    def test_an_unknown_form_is_refused_with_the_known_ones(self, text: str) -> None:
        """The error shows what may be written."""
        with pytest.raises(ConfigurationError, match="header:NAME, json:FIELD") as refused:
            parse_key_id(text)
        assert (refused.value.where, refused.value.option) == (
            "the command line",
            f"--key-id={text}",
        )


def rows(side: int, records: list[tuple[int, int, int]], *, late: bool = False) -> Rows:
    """Make rows from (identity, partition, offset); equal identities have equal hashes."""
    made = np.zeros(len(records), dtype=ROW)
    for row, (identity, partition, offset) in zip(made, records, strict=True):
        # As the product's: what is linear in the identity makes 3 + 15 the sum of 4 + 14 (seen).
        digest = hashlib.blake2b(b"%d" % identity, digest_size=8).digest()
        row["high"], row["low"] = int.from_bytes(digest), identity
        row["partition"], row["offset"], row["side"] = partition, offset, side
        row["late"] = late
    return made


def found(
    folder: Path,
    inputs: list[tuple[int, int, int]],
    outputs: list[tuple[int, int, int]],
    *,
    late: Sequence[tuple[int, int, int]] = (),
    ordered: bool = True,
    unique: bool = False,
) -> Findings:
    """Search both lists; late records of the input came after the proof had begun."""
    many = len(inputs) + len(late) + len(outputs)
    search = Search(folder, records=many, ordered=ordered, examples=10, unique=unique)
    search.add(rows(INPUT, [*late], late=True))
    search.add(rows(INPUT, inputs))
    search.add(rows(OUTPUT, outputs))
    return search.finish()


def numbers(findings: Findings) -> dict[str, int]:
    """Return what is not zero."""
    kept = {"limit", "examples"}
    return {name: n for name, n in vars(findings).items() if name not in kept and n}


CLEAN = [(identity, identity % 2, identity) for identity in range(40)]


@pytest.fixture(params=[500_000, 7], ids=["one bucket", "many buckets"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An empty folder, with buckets and ranges of usual size and of a tiny one."""
    monkeypatch.setattr(identity_search, "_ROWS_PER_BUCKET", request.param)
    if request.param == 7:
        monkeypatch.setattr(identity_search, "_RANGE_BITS", 2)
    yield tmp_path
    left = [path.name for path in tmp_path.iterdir() if path.name != "lost"]
    assert left == []


class TestSearch:
    """Each anomaly by its name and no other, as the auditor's checkers (A6)."""

    def test_a6_equal_bags_have_no_findings(self, folder: Path) -> None:
        """Also when they come in another order of partitions."""
        assert numbers(found(folder, CLEAN, CLEAN[::-1])) == {}

    def test_a6_one_duplicate(self, folder: Path) -> None:
        """It names the copy and the input record."""
        findings = found(folder, CLEAN, [*CLEAN, (17, 1, 99)])
        assert numbers(findings) == {"duplicated": 1}
        assert findings.examples == {"duplicated": [((1, 99), (1, 17))]}

    def test_a6_one_loss_at_the_tail(self, folder: Path) -> None:
        """The last of input partition 1."""
        findings = found(folder, CLEAN, CLEAN[:-1])
        assert numbers(findings) == {"lost_at_tail": 1}
        assert findings.examples == {"lost at the tail": [(None, (1, 39))]}

    def test_a6_one_loss_in_the_middle(self, folder: Path) -> None:
        """A later one of its partition arrived."""
        findings = found(folder, CLEAN, [record for record in CLEAN if record[0] != 12])
        assert numbers(findings) == {"lost_in_middle": 1}
        assert findings.examples == {"lost in the middle": [(None, (0, 12))]}

    def test_a6_one_swap(self, folder: Path) -> None:
        """Records 10 and 12 of input partition 0 change places in output partition 0."""
        swapped = [({10: 12, 12: 10}.get(i, i), partition, at) for i, partition, at in CLEAN]
        findings = found(folder, CLEAN, swapped)
        assert numbers(findings) == {"out_of_order": 1}
        assert findings.examples == {"out of order": [((0, 12), (0, 10))]}

    def test_a6_a_swap_is_not_looked_for_unless_asked(self, folder: Path) -> None:
        """Order is a promise of its own."""
        swapped = [({10: 12, 12: 10}.get(i, i), partition, at) for i, partition, at in CLEAN]
        assert numbers(found(folder, CLEAN, swapped, ordered=False)) == {}

    def test_a6_one_foreign_record(self, folder: Path) -> None:
        """It names the output record only."""
        findings = found(folder, CLEAN, [*CLEAN, (77, 1, 99)])
        assert numbers(findings) == {"foreign": 1}
        assert findings.examples == {"foreign": [((1, 99), None)]}

    def test_an_empty_output_loses_everything_at_the_tail(self, folder: Path) -> None:
        """An empty output is no proof."""
        assert numbers(found(folder, CLEAN, [])) == {"lost_at_tail": 40}

    def test_identities_that_repeat_are_counted(self, folder: Path) -> None:
        """Three in, two out: one is lost; their order cannot be told."""
        inputs = [(5, 0, 0), (5, 0, 1), (5, 0, 2), (6, 0, 3)]
        outputs = [(5, 0, 0), (5, 0, 1), (6, 0, 2)]
        findings = found(folder, inputs, outputs)
        assert numbers(findings) == {"lost_in_middle": 1, "order_unknown": 3}

    @pytest.mark.parametrize("ordered", [False, True])
    def test_a_loss_and_a_duplicate_of_one_identity_are_not_taken_for_success(
        self, folder: Path, ordered: bool
    ) -> None:
        """Two records of one key in, the first of them twice out: as many of each key."""
        inputs = [(5, 0, 0), (5, 0, 1), (6, 0, 2)]
        findings = found(folder, inputs, inputs, ordered=ordered, unique=True)
        assert numbers(findings) == {"repeated": 2}
        assert findings.examples == {"identity repeats": [(None, (0, 1))]}

    def test_order_between_input_partitions_does_not_matter(self, folder: Path) -> None:
        """Kafka promises none."""
        inputs = [(i, i % 2, i) for i in range(20)]
        outputs = [(i, 0, at) for at, i in enumerate([*range(1, 20, 2), *range(0, 20, 2)])]
        assert numbers(found(folder, inputs, outputs)) == {}

    @settings(max_examples=60, deadline=None)
    @given(
        inputs=st.lists(st.integers(0, 15), max_size=25),
        outputs=st.lists(st.integers(0, 15), max_size=25),
    )
    def test_the_sum_is_equal_exactly_when_the_search_finds_nothing(
        self, tmp_path_factory: pytest.TempPathFactory, inputs: list[int], outputs: list[int]
    ) -> None:
        """The two steps of the proof never contradict each other, and the numbers add up."""
        left = [(identity, 0, at) for at, identity in enumerate(inputs)]
        right = [(identity, 0, at) for at, identity in enumerate(outputs)]
        sums = BagSum(), BagSum()
        sums[0].add(rows(INPUT, left))
        sums[1].add(rows(OUTPUT, right))
        findings = found(tmp_path_factory.mktemp("search"), left, right, ordered=False)
        lost = findings.lost_at_tail + findings.lost_in_middle
        extra = findings.duplicated + findings.foreign
        assert (sums[0] == sums[1]) == (not numbers(findings))
        assert len(inputs) - lost == len(outputs) - extra


LATE = [(identity, identity % 2, identity) for identity in range(40, 50)]


class TestLateRecords:
    """Records of the input that came while the proof ran: they may be in the output, once."""

    @pytest.mark.parametrize("processed", [0, 4, 10])
    def test_they_may_be_there_and_they_may_be_missing(self, folder: Path, processed: int) -> None:
        """The pipeline has moved some of them; none is foreign, and none is lost."""
        findings = found(folder, CLEAN, [*CLEAN, *LATE[:processed]], late=LATE, unique=True)
        assert numbers(findings) == {}

    def test_one_in_the_middle_of_them_may_be_missing(self, folder: Path) -> None:
        """Partitions of the output are not read at one instant."""
        assert numbers(found(folder, CLEAN, [*CLEAN, *LATE[3:]], late=LATE)) == {}

    def test_a_duplicate_of_one_is_a_duplicate(self, folder: Path) -> None:
        """It names the copy and the input record."""
        findings = found(folder, CLEAN, [*CLEAN, *LATE[:4], (42, 1, 99)], late=LATE)
        assert numbers(findings) == {"duplicated": 1}
        assert findings.examples == {"duplicated": [((1, 99), (0, 42))]}

    def test_a_foreign_record_among_them_is_foreign(self, folder: Path) -> None:
        """No input has it, neither before nor after."""
        findings = found(folder, CLEAN, [*CLEAN, *LATE[:4], (77, 1, 99)], late=LATE)
        assert numbers(findings) == {"foreign": 1}

    def test_a_loss_before_one_that_came_through_is_in_the_middle(self, folder: Path) -> None:
        """Record 39 is the last that must be there; 41 of its partition is there."""
        findings = found(folder, CLEAN, [*CLEAN[:-1], *LATE[:2]], late=LATE)
        assert numbers(findings) == {"lost_in_middle": 1}
        assert findings.examples == {"lost in the middle": [(None, (1, 39))]}

    def test_a_swap_of_two_is_out_of_order(self, folder: Path) -> None:
        """Order is proven for all that came through."""
        swapped = [(44, 0, 42), (42, 0, 44)]
        assert numbers(found(folder, CLEAN, [*CLEAN, *swapped], late=LATE)) == {"out_of_order": 1}

    def test_one_that_repeats_an_earlier_identity_is_named(self, folder: Path) -> None:
        """Then nobody can tell which of both is in the output."""
        findings = found(folder, CLEAN, CLEAN, late=[(7, 1, 41)], unique=True)
        assert numbers(findings) == {"repeated": 2}
        assert findings.examples == {"identity repeats": [(None, (1, 41))]}

    @settings(max_examples=60, deadline=None)
    @given(
        inputs=st.lists(st.integers(0, 9), max_size=20),
        late=st.lists(st.integers(0, 9), max_size=10),
        outputs=st.lists(st.integers(0, 9), max_size=25),
    )
    def test_an_identity_comes_as_often_as_before_and_not_more_often_than_now(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        inputs: list[int],
        late: list[int],
        outputs: list[int],
    ) -> None:
        """The rule of --allow-repeats, for any history."""
        before, now, out = Counter(inputs), Counter(inputs + late), Counter(outputs)
        findings = found(
            tmp_path_factory.mktemp("search"),
            [(identity, 0, at) for at, identity in enumerate(inputs)],
            [(identity, 0, at) for at, identity in enumerate(outputs)],
            late=[(identity, 0, at) for at, identity in enumerate(late, len(inputs))],
            ordered=False,
        )
        assert findings.lost_at_tail + findings.lost_in_middle == (before - out).total()
        assert findings.duplicated + findings.foreign == (out - now).total()
        assert findings.foreign == sum(n for identity, n in out.items() if identity not in now)


class TestSum:
    """A count and a sum modulo 2^128."""

    def test_equal_records_do_not_cancel(self) -> None:
        """XOR would make {a, c, c} and {a, d, d} one."""
        one, other = BagSum(), BagSum()
        one.add(rows(INPUT, [(1, 0, 0), (3, 0, 1), (3, 0, 2)]))
        other.add(rows(OUTPUT, [(1, 0, 0), (4, 0, 1), (4, 0, 2)]))
        assert one != other

    def test_the_sum_is_exact(self) -> None:
        """It carries from the low half into the high one and wraps at 2^128."""
        full = np.zeros(3, dtype=ROW)
        full["high"] = full["low"] = 2**64 - 1
        bag = BagSum()
        bag.add(full)
        assert bag._sum == 3 * (2**128 - 1) % 2**128


class TestVerdict:
    """What fails a proof."""

    def test_a_loss_may_be_allowed_a_duplicate_never(self) -> None:
        """--allow-missing is for filters."""
        lost = Verdict(
            records_in=2, records_out=1, missing_allowed=True, anomalies={"lost at the tail": 1}
        )
        assert lost.ok
        again = Verdict(
            records_in=2, records_out=3, missing_allowed=True, anomalies={"duplicated": 1}
        )
        assert not again.ok

    def test_nothing_is_no_proof(self) -> None:
        """A pipeline that began at the end of its input and has moved nothing."""
        assert Verdict(records_in=0, records_out=0).empty
        assert not Verdict(records_in=0, records_out=0, anomalies={"open transaction": 1}).empty
        assert not Verdict(records_in=0, records_out=1).empty

    def test_an_output_without_records_is_no_proof_of_a_pipeline_that_drops_some(self) -> None:
        """A mistyped output, or a pipeline that has never run, would hold: at most once."""
        lost = {"lost at the tail": 2}
        nothing = Verdict(records_in=2, records_out=0, missing_allowed=True, anomalies=lost)
        assert nothing.empty
        assert not replace(nothing, missing_allowed=False).empty
        assert not replace(nothing, anomalies=lost | {"open transaction": 1}).empty

    @pytest.mark.parametrize(
        ("anomalies", "code", "says"),
        [
            ({}, 0, "The proof holds"),
            ({"identity repeats": 2}, 2, "No verdict: identity repeats (2)"),
            ({"without identity": 1}, 2, "No verdict: without identity (1)"),
            ({"order not provable: the identity repeats": 3}, 2, "leave out --ordered"),
            ({"lost at the tail": 1}, 1, "The proof fails: lost at the tail (1)"),
            ({"foreign": 1, "identity repeats": 2}, 1, "The proof fails: foreign (1)"),
            ({"open transaction": 1, "without identity": 2}, 1, "The proof fails: open"),
        ],
    )
    def test_what_cannot_be_compared_is_no_fault_of_the_output(
        self, monkeypatch: pytest.MonkeyPatch, anomalies: dict[str, int], code: int, says: str
    ) -> None:
        """An unfit --key-id proves nothing, in neither direction: only a fault has exit code 1."""
        verdict = Verdict(records_in=9, records_out=9, anomalies=anomalies)
        monkeypatch.setattr("connectors.operations.verify.verify", lambda *_, **__: verdict)
        arguments = ["--bootstrap", "x:1", "--input", "a", "--output", "b", "--examples", "0"]
        result = CliRunner().invoke(command, arguments)
        assert (result.exit_code, says in " ".join(result.output.split())) == (code, True), (
            result.output
        )

    @pytest.mark.parametrize(
        ("late", "lost", "foreign", "says"),
        [
            (0, 1, 0, "it may not have come to them yet"),
            (5, 1, 0, "Still growing: the input. If the pipeline lags, let it catch up"),
            (5, 9, 12, "No record matched: --key-id record may not fit"),
        ],
    )
    def test_what_is_missing_is_explained(
        self, monkeypatch: pytest.MonkeyPatch, late: int, lost: int, foreign: int, says: str
    ) -> None:
        """By a pipeline that lags, or by an identity that matches nothing."""
        found = {"lost at the tail": lost, "foreign": foreign}
        verdict = Verdict(
            records_in=9,
            records_late=late,
            records_out=12,
            anomalies={name: number for name, number in found.items() if number},
        )
        monkeypatch.setattr("connectors.operations.verify.verify", lambda *_, **__: verdict)
        arguments = ["--bootstrap", "x:1", "--input", "a", "--output", "b"]
        result = CliRunner().invoke(command, arguments)
        assert (result.exit_code, says in " ".join(result.output.split())) == (1, True), (
            result.output
        )

    @pytest.mark.parametrize("ordered", [False, True])
    def test_an_option_that_would_be_refused_is_not_offered(
        self, monkeypatch: pytest.MonkeyPatch, ordered: bool
    ) -> None:
        """--allow-repeats cannot be given beside --ordered."""
        verdict = Verdict(records_in=9, records_out=9, anomalies={"identity repeats": 2})
        monkeypatch.setattr("connectors.operations.verify.verify", lambda *_, **__: verdict)
        arguments = ["--bootstrap", "x:1", "--input", "a", "--output", "b"]
        result = CliRunner().invoke(command, [*arguments, *["--ordered"][: int(ordered)]])
        assert "Choose a --key-id" in " ".join(result.output.split())
        assert ("--allow-repeats" in result.output) == (not ordered)


class TestOptions:
    """Refused before any broker is asked."""

    @pytest.mark.parametrize(
        "changed",
        [
            {"inputs": ()},
            {"outputs": ("b", "b")},
            {"outputs": ("a",)},
            {"timeout": 0.0},
            {"examples": -1},
            {"ordered": True, "allow_repeats": True},
        ],
    )
    def test_what_can_prove_nothing_is_refused(self, changed: dict[str, object]) -> None:
        """Topics missing, twice, or on both sides; numbers out of range; an order of records that
        nobody can tell apart.
        """
        given: dict[str, object] = {"kafka": {}, "inputs": ("a",), "outputs": ("b",)}
        with pytest.raises(ConfigurationError) as refused:
            VerifyOptions(**(given | changed)).validate()  # type: ignore[arg-type]
        error = refused.value
        assert all((error.what, error.where, error.cause, error.option)), error

    def test_an_identity_that_is_a_part_of_the_record_must_be_unique(self) -> None:
        """Of two equal records nobody can tell which one is lost."""
        options = VerifyOptions(kafka={}, inputs=("a",), outputs=("b",))
        assert not options.unique
        assert replace(options, key_id="key").unique
        assert replace(options, output_key_id="value").unique
        assert not replace(options, key_id="key", allow_repeats=True).unique

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--input", "a", "--output", "b"],
            ["--bootstrap", "x:1", "--input", "a", "--output", "b", "--key-id", "nonsense"],
            ["--bootstrap", "x:1", "--input", "a", "--output", "a"],
            ["--bootstrap", "x:1", "--input", "a", "--output", "b", "--kafka", "novalue"],
            ["--bootstrap", "x:1", "--input", "a", "--output", "b", "--kafka", "group.id=g"],
            ["--bootstrap", "x:1", "--input", "a", "--output", "b", "--kafka", "no.such=1"],
        ],
    )
    def test_a_bad_command_line_has_exit_code_2(self, arguments: list[str]) -> None:
        """No verdict, and the option is named."""
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 2, result.output
        assert "--" in result.output or "look at: kafka." in result.output

    @pytest.mark.parametrize(
        "error", [KeyboardInterrupt(), OSError(28, "No space left"), KeyError("a bug")]
    )
    def test_no_verdict_is_never_taken_for_a_failed_proof(
        self, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        """Ctrl-C and a full disk have exit code 2 too, not click's and Python's 1."""

        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("connectors.operations.verify.verify", fail)
        arguments = ["--bootstrap", "x:1", "--input", "a", "--output", "b"]
        assert CliRunner().invoke(command, arguments).exit_code == 2

    def test_refused_credentials_are_told_from_a_broker_that_is_down(self) -> None:
        """The client only times out on both; the reason came by callback before."""
        ends = TopicEnds({"bootstrap.servers": "127.0.0.1:1"})
        ends._remember(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error"))
        ends._remember(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
        with pytest.raises(AuthenticationError, match="SASL authentication error"):
            ends.committed(["a"], Deadline(0.2))

    @pytest.mark.parametrize(
        "refusal", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART]
    )
    def test_a_partition_without_a_leader_is_asked_for_again(self, refusal: int) -> None:
        """The leader of a new topic may not know yet that it leads it (seen on a busy machine)."""
        with MockCluster() as cluster:
            cluster.topic("a"), cluster.topic("b")
            cluster.refuse(LIST_OFFSETS, refusal, times=3)
            arguments = ["--bootstrap", cluster.bootstrap, "--input", "a", "--output", "b"]
            result = CliRunner().invoke(command, arguments)
        assert "no record was compared" in result.output, result.output
        assert result.exit_code == 2

    def test_a_cluster_that_does_not_tell_what_is_compacted_is_no_error(self) -> None:
        """A user may lack the right to see it; this broker does not know the question."""
        with MockCluster() as cluster:
            ends = TopicEnds({"bootstrap.servers": cluster.bootstrap})
            assert ends.compacted([cluster.topic("a")], Deadline(0.2)) == []

    def test_a_leader_that_is_silent_is_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Librdkafka gives the offset -1001 then, and no error; nothing would be compared."""
        monkeypatch.setattr(bounded_scan, "_ASK_S", 1.0)
        with MockCluster() as cluster:
            cluster.topic("a")
            cluster.slow(LIST_OFFSETS, 3000)
            ends = TopicEnds({"bootstrap.servers": cluster.bootstrap})
            asked = ends._ask([("a", 0)], OffsetSpec.latest(), committed=True, deadline=Deadline(9))
            assert asked == {("a", 0): 0}

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (KafkaError.NOT_LEADER_FOR_PARTITION, "Not leader for partition"),
            (KafkaError.UNKNOWN_TOPIC_OR_PART, "does not exist"),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, "an ACL: READ on the topic"),
        ],
    )
    def test_an_answer_that_stays_is_told_after_the_timeout(self, answer: int, told: str) -> None:
        """Nothing is waited for without end, and the broker's own word is the cause."""
        with MockCluster() as cluster:
            cluster.topic("a"), cluster.topic("b")
            cluster.refuse(LIST_OFFSETS, answer, times=1000)
            arguments = ["--bootstrap", cluster.bootstrap, "--input", "a", "--output", "b"]
            result = CliRunner().invoke(command, [*arguments, "--timeout", "1"])
        assert result.exit_code == 2, result.output
        assert told in result.output

    def test_help_shows_examples(self) -> None:
        """--help is the manual."""
        result = CliRunner().invoke(command, ["--help"])
        assert result.exit_code == 0
        assert "--key-id json:flight_id --ordered" in result.output


class SlowEnds:
    """A broker that needs 0.2 s for an answer; a transaction of the topic stays open."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def committed(self, _topics: object, deadline: Deadline) -> list[Range]:
        self._answer(deadline)
        return [Range("out", 0, 0, 10)]

    def log_ends(self, _topics: object, deadline: Deadline) -> dict[str, int]:
        self._answer(deadline)
        return {"out-0": 11}

    def _answer(self, deadline: Deadline) -> None:
        if deadline.remaining() < 0.2:
            raise BrokerUnavailableError("No broker answered.")
        self._clock.sleep(0.2)


class BusyEnds(SlowEnds):
    """Beside it a pipeline writes: ten offsets a look are decided, and five more are not."""

    at = 0

    def committed(self, _topics: object, deadline: Deadline) -> list[Range]:
        self._answer(deadline)
        self.at += 10
        new = [Range("out", 1, 0, 3)] if self.at > 10 else []  # a partition that was added
        return [Range("out", 0, 0, self.at), *new]

    def log_ends(self, _topics: object, deadline: Deadline) -> dict[str, int]:
        self._answer(deadline)
        return {"out-0": self.at + 15}


def settled(ends: SlowEnds, clock: VirtualClock) -> tuple[list[Range], list[str]]:
    options = VerifyOptions(kafka={}, inputs=("in",), outputs=("out",), timeout=1.0)
    ranges, hidden = _settled(ends, options, clock)  # type: ignore[arg-type]
    return ranges, [one.output for one in hidden]


def test_the_last_look_for_open_transactions_has_time_for_its_answers() -> None:
    """With what is left of the patience it would say that no broker answers (seen)."""
    clock = VirtualClock()
    ranges, hidden = settled(SlowEnds(clock), clock)
    assert ranges == [Range("out", 0, 0, 10)]
    assert hidden == ["out-0: readers stop at 10, the log ends at 11"]
    assert 1.0 <= clock.time < 2.0


def test_a_pipeline_that_always_has_an_open_transaction_hides_nothing() -> None:
    """What was open at the first look is decided soon; what came later is not waited for."""
    clock = VirtualClock()
    ranges, hidden = settled(BusyEnds(clock), clock)
    assert (ranges, hidden) == ([Range("out", 0, 0, 20), Range("out", 1, 0, 3)], [])

"""What is broken on purpose, one line each, and the test that must then be red.

`old` must stand exactly once in the file; `tests/unit/test_mutation_list.py` sees to it that the
list does not rot. Rules are those of the protocol: ids and producers (1-6), phase 1 (7-9), decision
and phase 2 (10-12), always (13, 14), the decision log, the rows of the recovery table, healing.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Mutation:
    """One broken line.

    Attributes:
        rule: which rule it breaks.
        file: where.
        old: the text that is replaced.
        new: by what.
        test: node id of a test that must fail.
    """

    rule: str
    file: str
    old: str
    new: str
    test: str


WRITER = "connectors/kafka/sink/kafka_writer.py"
COMMITTER = "connectors/kafka/sink/kafka_committer.py"
POOL = "connectors/kafka/sink/producer_pool.py"
PRODUCER = "connectors/kafka/sink/transactional_producer.py"
RECORD_PRODUCER = "connectors/kafka/sink/record_producer.py"
WITNESS = "connectors/pipeline/witness.py"
WIRE = "connectors/wire/coordinator_wire.py"
PREPARED = "connectors/kafka/sink/prepared.py"
REQUESTS = "connectors/wire/wire_requests.py"
ANSWERS = "connectors/wire/broker_answers.py"
LOG = "transactions/decision_log.py"
BACKEND = "transactions/log_backend.py"
COORDINATOR = "transactions/coordinator.py"
RECOVERY = "transactions/recovery.py"
REPLAY = "transactions/replay.py"
HEALING = "transactions/healing.py"
PLAIN_SINK = "connectors/kafka/sink/plain_writer.py"
LOOP = "connectors/continuous/checkpoint_loop.py"
STAGE_TASK = "connectors/continuous/stage_task.py"
RUN = "connectors/pipeline/run.py"
FINGERPRINT = "connectors/records/fingerprint.py"

OBJECT_FOLDER = "connectors/files/object_folder.py"

ON_SINK = "tests/integration/test_transactional_sink.py::"
ON_WIRE = "tests/integration/test_coordinator_wire.py::"
ON_HEALING = "tests/integration/test_healing.py::"
SEEDS = "tests/simulation/test_seeds.py::test_nothing_is_lost_or_doubled_under_random_faults"
POINTS = "tests/simulation/test_crash_points.py"
HEAL = "tests/simulation/test_healing.py::"
GUARANTEES = "tests/simulation/test_continuous_guarantees.py::"
UNIT_GUARANTEES = "tests/unit/test_guarantees.py::"
UNIT_LOG = "tests/unit/test_decision_log.py::"
ON_OBJECTS = "tests/unit/test_object_file_sink.py::"

MUTATIONS = (
    Mutation(
        "1 an id is of one log only",
        COMMITTER,
        "self.wire.list_open(owner.application_id, owner.log_id, deadline)",
        "self.wire.list_open(owner.application_id, None, deadline)",
        ON_SINK + "test_rule_1_x13_x21_a_sweep_is_of_one_log_and_its_older_runs",
    ),
    Mutation(
        "1 a match is exact",
        WIRE,
        'prefix = f"{application_id}." if log_id',
        'prefix = f"{application_id}" if log_id',
        ON_WIRE + "test_list_open_never_matches_another_application",
    ),
    Mutation(
        "2 pid and epoch are those after init",
        PRODUCER,
        'self.producer_epoch = facts["producer_epoch"]',
        'self.producer_epoch = facts["producer_epoch"] + 1',
        ON_SINK + "test_prepared_records_are_invisible_until_the_commit",
    ),
    Mutation(
        "2 producers that no task asks for are dropped",
        "connectors/kafka/sink/idle_cache.py",
        "self._drop(lambda _key, _value, ends: ends.expired())",
        "self._drop(lambda _key, _value, ends: False)",
        "tests/unit/test_producer_pool.py::test_f50_a_pool_that_no_task_asks_for_is_gone",
    ),
    Mutation(
        "3 retire on doubt",
        COMMITTER,
        "self._retired.add(self.wire.doubtful & {one.transactional_id for one in committables})",
        "pass",
        SEEDS,
    ),
    Mutation(
        "3 retire on doubt, although another id of the call is refused",
        COMMITTER,
        "        finally:  # an error is about one id; another one of this call may be in doubt\n",
        "        except ZeroDivisionError:\n            raise\n        else:\n",
        "tests/unit/test_doubtful_ids.py"
        "::test_rule_3_a_doubt_is_noted_although_another_id_is_refused",
    ),
    Mutation(
        "3 a retired id is not used",
        POOL,
        "if slot.producer.transactional_id in attempt.retired or (",
        "if (",
        ON_SINK + "test_rule_3_a_retired_id_is_never_used_again",
    ),
    Mutation(
        "3 a connection that breaks during a call is a doubt",
        PRODUCER,
        "if facility == _BROKEN and _is_doubt(level, others[-1]):",
        "if False:",
        "tests/unit/test_transactional_producer.py"
        "::test_a_line_of_the_log_is_a_doubt_about_the_call_that_is_under_way",
    ),
    Mutation(
        "4 EndTxn at version 4",
        REQUESTS,
        "END_TXN_MAX_VERSION: Final = 4",
        "END_TXN_MAX_VERSION: Final = 5",
        ON_WIRE + "test_the_live_producer_goes_on_after_our_commit",
    ),
    Mutation(
        "5 a producer begins again only when its transaction ended",
        POOL,
        "slot.producer.resync(deadline)",
        "pass",
        ON_SINK + "test_rule_7_a_decided_transaction_is_resynced_and_its_producer_used_again",
    ),
    Mutation(
        "6 a fenced producer is replaced",
        POOL,
        "            self.drop(slot)\n            return False",
        "            return True",
        ON_SINK + "test_rule_5_a_fenced_producer_is_replaced_under_another_id",
    ),
    Mutation(
        "7 not decided: abort",
        POOL,
        "if decided is not None and decided.token == slot.token:",
        "if True:",
        ON_SINK + "test_rule_7_an_undecided_transaction_of_an_earlier_checkpoint_is_aborted",
    ),
    Mutation(
        "7 of this checkpoint: leave it",
        POOL,
        "elif slot.checkpoint_id < attempt.checkpoint_id and self._clear(",
        "elif slot.checkpoint_id <= attempt.checkpoint_id and self._clear(",
        ON_SINK + "test_rule_7_a_second_task_of_the_same_checkpoint_takes_another_slot",
    ),
    Mutation(
        "7 a zombie stops",
        POOL,
        "elif slot.checkpoint_id > attempt.checkpoint_id:",
        "elif False:",
        ON_SINK + "test_rule_7_a_zombie_of_an_older_checkpoint_stops",
    ),
    Mutation(
        "8 zero delivery errors",
        RECORD_PRODUCER,
        "            self._failed += 1",
        "            pass",
        ON_SINK + "test_w6_x22_a_record_the_broker_refuses_fails_the_attempt",
    ),
    Mutation(
        "8 zero delivery errors on the native path",
        "connectors/native/client_handle.py",
        "if about.err and self._on_delivery is not None:",
        "if about.err and self._on_delivery is None:",
        "tests/integration/test_native_path.py::"
        "test_w6_a_record_that_the_broker_refuses_is_counted",
    ),
    Mutation(
        "8 everything is acknowledged",
        WRITER,
        "        producer.flush(transaction.deadline)\n",
        "",
        ON_SINK + "test_w6_x22_a_record_the_broker_refuses_fails_the_attempt",
    ),
    Mutation(
        "9 an empty transaction is no committable",
        WRITER,
        "if transaction.flushed or (transaction.slot is None and not attempt.source_offsets):",
        "if transaction.flushed:",
        ON_SINK + "test_f15_an_empty_transaction_is_no_committable",
    ),
    Mutation(
        "9 the token travels with the transaction",
        PRODUCER,
        "int(partition), offset, metadata=token)",
        "int(partition), offset)",
        ON_SINK + "test_recovery_by_the_marker_after_a_stranger_took_the_id",
    ),
    Mutation(
        "9 the marker comes first",
        PREPARED,
        "if marker not in now.partitions:",
        "if False:",
        ON_SINK + "test_a3_a_late_end_txn_between_two_records_is_found",
    ),
    Mutation(
        "9 its group is kept elsewhere than the application's",
        POOL,
        "offsets_partitions <= 1 or",
        "True or",
        "tests/unit/test_offsets_topic.py::test_a3_no_id_has_its_group_beside_the_applications",
    ),
    Mutation(
        "log: a refused start's Fence is not taken for a run that wrote",
        WITNESS,
        "one.run_epoch >= log.decided_in",
        "one.run_epoch >= log.run_epoch",
        "tests/simulation/test_second_folder.py"
        "::test_a_backup_is_refused_again_after_a_start_that_left_a_fence",
    ),
    Mutation(
        "10 describe before deciding",
        COMMITTER,
        "if problem := not_prepared(one, now, self.offsets_partitions):",
        "if problem := '':",
        ON_SINK + "test_rule_10_a_transaction_that_was_ended_behind_our_back_is_not_decided",
    ),
    Mutation(
        "10 a replica that leads no more is not believed",
        "connectors/wire/partition_leaders.py",
        "        if name in led:\n",
        "        if True:\n",
        "tests/simulation/test_visibility.py"
        "::test_a_replica_that_leads_no_more_and_lags_is_not_believed",
    ),
    Mutation(
        "10 a broker that lost an answer is asked the other way",
        "connectors/wire/direct_questions.py",
        "self._left_alone[node] = time.monotonic() + pause_s",
        "self._left_alone[node] = time.monotonic()",
        "tests/integration/test_direct_questions.py"
        "::test_a_lost_answer_is_asked_for_in_the_other_way",
    ),
    Mutation(
        "11 the next decision waits for the last",
        COORDINATOR,
        "        settlement.settle(self._sinks, deadline)\n",
        "",
        SEEDS,
    ),
    Mutation(
        "12 markers still being written: again",
        ANSWERS,
        '"CONCURRENT_TRANSACTIONS",\n            Meaning.RETRY,',
        '"CONCURRENT_TRANSACTIONS",\n            Meaning.ASK,',
        "tests/unit/test_broker_answers.py",
    ),
    Mutation(
        "13 the janitor after each batch",
        COORDINATOR,
        "        self._log.compact_if_due()\n        self._janitor.start(decided)\n",
        "        self._log.compact_if_due()\n",
        "tests/simulation",
    ),
    Mutation(
        "13 what is committed is seen to be visible before anything is aborted",
        "transactions/sweeper.py",
        "        refuse_hidden(self._sinks, self._owner, committed, deadline)\n",
        "",
        "tests/unit/test_sweeper.py",
    ),
    Mutation(
        "13 a continuous task begins again on a producer that has nothing hidden",
        "connectors/continuous/checkpoint_loop.py",
        '`BarrierPace.after`."""\n        self._coordinator.await_visible()\n',
        '`BarrierPace.after`."""\n',
        "tests/simulation/test_continuous_crashes.py::"
        "test_a_hidden_commit_is_found_before_its_producer_is_used_again",
    ),
    Mutation(
        "13 what fills in a running stage is not swept, where tasks have no ids of their own",
        "connectors/continuous/stage_committer.py",
        "owner = dataclasses.replace(owner, run_epoch=owner.run_epoch - 1)",
        "pass",
        "tests/simulation/test_continuous_files.py::test_a_sweep_of_what_fills_is_found",
    ),
    Mutation(
        "13 a task that is ending prepares nothing of what it has given up",
        "connectors/continuous/contract_writer.py",
        "if self._closed:",
        "if False:",
        "tests/unit/test_contract_writer.py::"
        "test_a_task_that_ends_gives_up_what_fills_and_never_what_is_prepared",
    ),
    Mutation(
        "14 the transaction outlives checkpoint and restart",
        "connectors/kafka/sink/kafka_sink.py",
        "if timeout < at_least_s * 1000:",
        "if False:",
        "tests/unit/test_preflight.py::"
        "test_rule_14_a_transaction_that_a_checkpoint_and_a_restart_outlive_is_refused",
    ),
    Mutation(
        "14 half of the timeout is told",
        "transactions/checkpoint_watch.py",
        "    tell_aging(committables, now_ms)\n",
        "",
        "tests/unit/test_aging_transactions.py::"
        "test_f51_a_long_checkpoint_is_told_when_it_is_decided",
    ),
    Mutation(
        "log: the nonce tells whose put it was",
        LOG,
        "if Entry.from_bytes(data, where=where).nonce != entry.nonce:",
        "if False:",
        UNIT_LOG + "test_x15_an_older_run_can_not_decide_any_more",
    ),
    Mutation(
        "log: the floor fences",
        LOG,
        "if floor > self.state.tail + 1:",
        "if False:",
        UNIT_LOG + "test_a_freed_number_does_not_bring_a_zombie_back",
    ),
    Mutation(
        "log: density",
        LOG,
        "        if data is None:\n            return None\n        where",
        "        if data is None:\n            continue\n        where",
        UNIT_LOG + "test_a_missing_entry_is_corruption",
    ),
    Mutation(
        "log: folder fsync of the writer",
        BACKEND,
        "            sync_folder(self._folder)\n            return is_new",
        "            return is_new",
        "tests/unit/test_log_backend.py::test_a_local_put_syncs_the_entry_and_its_folder",
    ),
    Mutation(
        "log: the data of a prepared entry is durable before its name",
        BACKEND,
        "            os.fdatasync(self._descriptor)\n",
        "",
        "tests/unit/test_power_cut.py::test_b1_a_prepared_decision_survives_a_power_cut_at_each_sync",
    ),
    Mutation(
        "log: the name of a prepared entry is durable",
        BACKEND,
        "            sync_folder(folder)\n            return is_new",
        "            return is_new",
        "tests/unit/test_power_cut.py::test_b1_a_prepared_decision_survives_a_power_cut_at_each_sync",
    ),
    Mutation(
        "log: an entry whose fsync failed is not known to be durable",
        LOG,
        "if error is not None and not self._backend.reads_are_durable:",
        "if False:",
        UNIT_LOG + "test_b2_a_decision_whose_fsync_failed_is_no_decision_yet",
    ),
    Mutation(
        "log: an entry is in doubt until the floor was looked at",
        LOG,
        "            self._in_doubt = entry\n            try:\n",
        "            try:\n",
        UNIT_LOG + "test_b2_an_entry_is_in_doubt_until_the_floor_was_looked_at",
    ),
    Mutation(
        "log: the Fence of a start that failed is known to the next try",
        LOG,
        "                keep(log)\n                raise\n",
        "                raise\n",
        "tests/unit/test_takeover.py"
        "::test_b8_the_fence_of_a_restart_that_failed_is_no_newer_driver",
    ),
    Mutation(
        "durable in order: offsets/N and commits/N-1 before the decision",
        "connectors/spark/micro_batch.py",
        "            written_before()",
        "            pass",
        "tests/unit/test_durable_files.py::test_b1_a_query_goes_on_after_a_power_cut_at_each_sync",
    ),
    Mutation(
        "durable in order: state before commits/N",
        "connectors/spark/durable_files.py",
        "            self.begin()()",
        "            pass",
        "tests/unit/test_durable_files.py::test_b1_a_query_goes_on_after_a_power_cut_at_each_sync",
    ),
    Mutation(
        "durable in order: a torn commits/N is not believed",
        "connectors/spark/durable_files.py",
        "if number >= last and not is_whole(path)",
        "if False",
        "tests/unit/test_durable_files.py::test_b1_only_what_is_undecided_is_dropped",
    ),
    Mutation(
        "durable in order: a plan that was not decided is made again, at an address too",
        "connectors/spark/hadoop_files.py",
        "            if number > last:\n",
        "            if False:\n",
        "tests/unit/test_hadoop_files.py::test_only_what_is_undecided_is_planned_again",
    ),
    Mutation(
        "durable in order: all of a first batch that was not decided goes, at an address too",
        "connectors/spark/hadoop_files.py",
        "        if last < 0:\n",
        "        if False:\n",
        "tests/unit/test_hadoop_files.py"
        "::test_all_of_a_first_batch_that_was_not_decided_is_removed",
    ),
    Mutation(
        "log: newest wins",
        LOG,
        "raise self._fenced_by(data)\n            self._check_floor()",
        "pass\n            self._check_floor()",
        UNIT_LOG + "test_x15_an_older_run_sees_the_fence_without_writing",
    ),
    Mutation(
        "log: put-if-absent",
        BACKEND,
        "    except FileExistsError:\n        return False\n",
        "    except FileExistsError:\n        os.replace(synced, place)\n",
        "tests/unit/test_log_backend.py::test_a_taken_name_is_refused_and_keeps_its_data",
    ),
    Mutation(
        "log: put-if-absent of a prepared entry",
        BACKEND,
        "    except FileExistsError:\n        return False\n",
        "    except FileExistsError:\n        return True\n",
        "tests/unit/test_log_backend.py::test_a_taken_name_is_refused_and_keeps_its_data",
    ),
    Mutation(
        "recovery: what is open and ours is committed",
        COMMITTER,
        'if ours and now.state == "Ongoing" and now.producer_epoch == one.producer_epoch:',
        "if False:",
        ON_HEALING + "test_x5_what_is_open_as_it_was_prepared_is_committed",
    ),
    Mutation(
        "recovery: a completed commit is a proof",
        COMMITTER,
        '_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})',
        '_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit", "CompleteAbort"})',
        ON_HEALING + "test_x9_a_real_timeout_is_a_positive_proof",
    ),
    Mutation(
        "recovery: a completed abort is a proof",
        COMMITTER,
        '_ABORTED_STATES = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})',
        "_ABORTED_STATES = frozenset()",
        ON_HEALING + "test_x9_a_real_timeout_is_a_positive_proof",
    ),
    Mutation(
        "recovery: the start time tells two transactions of one id apart",
        COMMITTER,
        "and now.start_time_ms == one.start_time_ms",
        "",
        "tests/unit/test_marker_proof.py::"
        "test_a_later_transaction_of_the_same_producer_is_not_ours",
    ),
    Mutation(
        "recovery: an absent marker that may have expired proves nothing",
        COMMITTER,
        "return Outcome.ABORTED if self._is_young(one, deadline) else Outcome.UNKNOWN",
        "return Outcome.ABORTED",
        ON_HEALING + "test_x19_an_absent_marker_proves_an_abort_while_it_could_not_have_expired",
    ),
    Mutation(
        "recovery: a marker that was overwritten proves nothing",
        COMMITTER,
        'if state == "Ongoing" or standing is Token.FOREIGN:',
        'if state == "Ongoing":',
        ON_HEALING + "test_x19_a_marker_that_somebody_overwrote_proves_nothing",
    ),
    Mutation(
        "recovery: the last decision is settled",
        RECOVERY,
        "        settlement = settle_last_decision(log, sinks, deadline)\n        committed",
        "        settlement = Settlement(())\n        committed",
        POINTS,
    ),
    Mutation(
        "recovery: what a person gave up and a start commits must be visible",
        RECOVERY,
        "        committed = settlement.in_state(State.COMMITTED)\n",
        "        found = settlement.in_state(State.COMMITTED)\n"
        "        committed = [one for one in found if one.token not in log.state.ended]\n",
        "tests/simulation/test_settled.py",
    ),
    Mutation(
        "recovery: settle, then sweep the ids of the decision",
        RECOVERY,
        "swept = sweep(sinks, owner, deadline, spare=decided)",
        "swept = sweep(sinks, owner, deadline)",
        POINTS,
    ),
    Mutation(
        "recovery: nothing stays open",
        RECOVERY,
        "    swept = sweep(sinks, owner, deadline, spare=decided)\n",
        "    swept = []\n    sweep = lambda *_: []\n",
        POINTS + "::test_after_recovery_nothing_is_open",
    ),
    Mutation(
        "recovery: where nothing can be proven a person is believed, in time",
        RECOVERY,
        "if left and self._has_waited_enough(left, rounds, deadline):",
        "if left and deadline.expired():",
        "tests/integration/test_flink_matrix.py::"
        "test_f51_a_commit_that_cannot_be_proven_fails_each_start_until_a_person_decides",
    ),
    Mutation(
        "recovery: the marker is looked for below open transactions too",
        COMMITTER,
        "for stable in (False, True):",
        "for stable in (True,):",
        "tests/integration/test_flink_matrix.py::"
        "test_f44_a_restored_transaction_was_committed_and_its_id_used_again",
    ),
    Mutation(
        "healing: the records are compared",
        HEALING,
        "if problem and not forced:",
        "if False:",
        HEAL + "test_a_replay_that_does_not_match_is_refused_and_nothing_of_it_is_visible",
    ),
    Mutation(
        "9 offsets are there where the source lies on the sink's cluster, whatever its name",
        "transactions/sink.py",
        'self.cluster_id != "" and self.cluster_id == other.cluster_id',
        "False",
        "tests/unit/test_cluster_ids.py"
        "::test_a_start_asks_for_an_id_once_and_only_if_the_servers_differ",
    ),
    Mutation(
        "healing: with the offsets that were decided",
        "connectors/spark/sink_stage.py",
        "decided.get(n, {}) for n in",
        "self.source_offsets[n] for n in",
        "tests/unit/test_replays.py"
        "::test_what_was_lost_is_written_again_with_the_offsets_that_were_decided",
    ),
    Mutation(
        "healing: durable before it is committed",
        COORDINATOR,
        "            self._replace([old for old, _ in pairs], new, settlement, number)\n"
        "            settlement = self._commit(new, number, deadline)\n",
        "            old_settlement = settlement\n"
        "            settlement = self._commit(new, number, deadline)\n"
        "            self._replace([old for old, _ in pairs], new, old_settlement, number)\n",
        HEAL + "test_a_crash_at_each_point_of_healing",
    ),
    Mutation(
        "log: a driver that commits all the time is fenced by the newest",
        "connectors/pipeline/takeover.py",
        "if may_have_moved and self._looks > MOST_LOOKS:",
        "if False:",
        "tests/unit/test_takeover.py"
        "::test_x15_a_driver_that_commits_all_the_time_is_fenced_by_the_newest",
    ),
    Mutation(
        "log: a backup, which does not move, is refused before the Fence",
        "connectors/pipeline/takeover.py",
        "may_have_moved = not self._looks or log.tail > self._known.tail",
        "may_have_moved = True",
        "tests/unit/test_takeover.py::test_a_backup_is_refused_and_has_no_fence",
    ),
    Mutation(
        "log: output that is newer than it is refused",
        "connectors/pipeline/takeover.py",
        "        if not newer:\n",
        "        if True:\n",
        "tests/simulation/test_second_folder.py::test_a_backup_of_any_age_is_refused",
    ),
    Mutation(
        "log: the newest run owns the application, whatever its folder",
        "connectors/kafka/sink/ownership.py",
        "        if held is None or (now.producer_id, now.producer_epoch) == held:\n",
        "        if True:\n",
        "tests/simulation/test_second_folder.py::test_a_copy_beside_the_running_original",
    ),
    Mutation(
        "log: a restart takes nothing from a newer run",
        "connectors/kafka/sink/ownership.py",
        "            except PhaseOneError:\n                self._held = None",
        "            except Exception:\n                self._held = None",
        "tests/unit/test_takeover.py::test_a_restart_yields_to_a_newer_run_that_begins_beside_it",
    ),
    Mutation(
        "log: what another log has open after the claim is refused",
        "connectors/pipeline/takeover.py",
        "                self._refuse_other_logs(sink, others, log.log_id)\n",
        "                pass\n",
        "tests/unit/test_takeover.py"
        "::test_one_that_another_log_begins_until_the_claim_is_refused_as_well",
    ),
    Mutation(
        "log: a repair on an old copy of it ends nothing",
        "connectors/pipeline/repair.py",
        "        if newer and read_log(reader.backend).tail == log.tail:\n",
        "        if False:\n",
        "tests/unit/test_transactions_command.py"
        "::test_an_old_copy_of_the_folder_aborts_nothing_of_the_pipeline_that_went_on",
    ),
    Mutation(
        "log: a driver that commits all the time is fenced by a repair",
        "connectors/pipeline/repair.py",
        "        if looks > MOST_LOOKS:",
        "        if False:",
        "tests/unit/test_transactions_command.py"
        "::test_x15_a_driver_that_commits_all_the_time_is_fenced_by_a_repair",
    ),
    Mutation(
        "log: a repair on an old copy that somebody writes ends nothing",
        "connectors/pipeline/repair.py",
        "    if newer := _newer_history(reader, log.state, deadline):\n",
        "    if newer := []:\n",
        "tests/unit/test_transactions_command.py"
        "::test_an_old_copy_that_somebody_writes_is_repaired_by_nobody",
    ),
    Mutation(
        "log: a repair aborts nothing behind a newer run",
        "connectors/pipeline/repair.py",
        "        log.check_newest()\n        owner = ",
        "        owner = ",
        "tests/unit/test_transactions_command.py"
        "::test_a_driver_that_takes_over_from_the_command_keeps_its_transactions",
    ),
    Mutation(
        "log: a person's word about an unknown transaction names it",
        "connectors/cli/transactions.py",
        "if names else {Standing.ABORTED}",
        "if names else {Standing.ABORTED, Standing.UNKNOWN}",
        "tests/unit/test_transactions_command.py"
        "::test_without_an_id_only_what_is_proven_aborted_is_resolved",
    ),
    Mutation(
        "log: a commit by hand ends well only if readers see it",
        "connectors/cli/transactions.py",
        "        refuse_hidden(reader, rows, deadline)\n",
        "",
        "tests/unit/test_transactions_command.py"
        "::test_a_commit_that_readers_may_not_see_is_no_success",
    ),
    Mutation(
        "log: a new checkpoint begins where the last one ends",
        REPLAY,
        "            _check_follows(last, checkpoint)\n",
        "            pass\n",
        "tests/unit/test_replay.py::test_a_gap_stops",
    ),
    Mutation(
        "healing: no later checkpoint while something is lost",
        COORDINATOR,
        "        if self._lost:\n",
        "        if False:\n",
        HEAL + "test_without_a_replay_of_the_checkpoint_no_later_one_is_made",
    ),
    Mutation(
        "healing: a person's word holds for what cannot be healed only",
        RECOVERY,
        "if walk.state is State.LOST and self._resolved.get(token) == ACCEPT_LOSS:",
        "if False:",
        HEAL + "test_a_person_decides_about_what_cannot_be_healed",
    ),
    Mutation(
        "3 a producer whose transaction failed is not used again",
        WRITER,
        "        self._pool(transaction.attempt.owner).drop(transaction.slot)\n",
        "        transaction.slot.ended = True\n",
        "tests/integration/test_flink_matrix.py::"
        "test_f14_a_producer_is_used_again_after_a_commit_and_never_after_a_failure",
    ),
    Mutation(
        "order: nothing overtakes the records of the checkpoint before",
        STAGE_TASK,
        "            self._writer.flush(transaction, moved)\n",
        "        self._writer.flush(transaction, moved)\n",
        "tests/unit/test_stage_task.py::test_nothing_of_the_next_transaction_overtakes_this_one",
    ),
    Mutation(
        "continuous: a barrier takes what came while the task paused",
        STAGE_TASK,
        "        self._pause.cut_short()\n",
        "",
        "tests/unit/test_stage_task.py::test_a_barrier_takes_what_came_while_the_task_paused",
    ),
    Mutation(
        "continuous: a task drops what it has read of a partition that left",
        STAGE_TASK,
        "if not self._leaving.isdisjoint(read.positions):",
        "if False:",
        "tests/unit/test_stage_task.py::test_a_partition_leaves_with_its_barrier",
    ),
    Mutation(
        "continuous: what was read beside a partition that left is written",
        STAGE_TASK,
        "            read = read.without(self._leaving)\n",
        "            break\n",
        "tests/unit/test_stage_task.py::test_what_was_read_beside_a_partition_that_leaves_is_written",
    ),
    Mutation(
        "continuous: a position stands behind every record of its read",
        "connectors/native/native_consumer.py",
        "behind = max(int(offsets[-1]) + 1, ends.pop((topic, partition), 0))",
        "behind = max(int(offsets[0]) + 1, ends.pop((topic, partition), 0))",
        "tests/integration/test_native_consumer.py::test_one_read_brings_all_partitions_in_one_batch",
    ),
    Mutation(
        "continuous: a partition moves in two barriers",
        "connectors/continuous/partition_shares.py",
        "removed = {} if arriving else self._take(",
        "removed = self._take(",
        "tests/unit/test_partition_shares.py",
    ),
    Mutation(
        "continuous: the last barrier reaches the tasks that do not read",
        "connectors/continuous/running_stage.py",
        "{*self._channels} if last else {*change.readers}",
        "{*change.readers}",
        "tests/unit/test_running_stage.py::test_a_barrier_reaches_only_readers_and_the_last_one_all",
    ),
    Mutation(
        "continuous: a task that is behind does not pause",
        STAGE_TASK,
        "came > 0 and not self._reader.lag and",
        "came > 0 and",
        "tests/unit/test_stage_task.py::test_a_task_that_is_behind_does_not_pause",
    ),
    Mutation(
        "fingerprint: rows of two topics are not hashed as one's",
        FINGERPRINT,
        "if full or topic != self._topic or not alike:",
        "if full or not alike:",
        "tests/unit/test_fingerprint.py::test_small_batches_are_hashed_together_as_if_alone",
    ),
    Mutation(
        "guarantees: at-least-once, positions only after the flush",
        PLAIN_SINK,
        "            write.producer.flush(write.deadline)\n",
        "            write.producer.serve()\n",
        UNIT_GUARANTEES + "test_at_least_once_fails_the_checkpoint_when_a_record_was_refused",
    ),
    Mutation(
        "guarantees: at-least-once, nothing of it is in the log",
        COORDINATOR,
        "[one for one in committables if one.needs_commit]",
        "list(committables)",
        GUARANTEES + "test_without_a_failure_every_record_comes_once",
    ),
    Mutation(
        "guarantees: at-least-once, positions alone are a decision",
        LOOP,
        "if committables or self._shares.offsets != before:",
        "if committables:",
        GUARANTEES + "test_positions_are_decided_where_nothing_is_written",
    ),
    Mutation(
        "guarantees: never falls from exactly-once",
        "connectors/pipeline/run_options.py",
        "        if fallen:\n",
        "        if False:\n",
        UNIT_GUARANTEES
        + "test_f48_a_guarantee_may_rise_across_a_restart_and_not_fall_from_exactly_once",
    ),
    Mutation(
        "log: only a run with the same parts finishes a checkpoint",
        "connectors/pipeline/changed_parts.py",
        "decision.committables or not engine.has_finished(decision.checkpoint_id)",
        "False",
        "tests/unit/test_changed_parts.py::test_what_is_decided_is_finished_first",
    ),
    Mutation(
        "log: a sink is left out only behind a stop in order",
        "connectors/pipeline/changed_parts.py",
        "if changed.left_out_sinks and not log.left:",
        "if False:",
        "tests/unit/test_changed_parts.py"
        "::test_what_a_killed_run_has_left_in_a_sink_is_ended_by_that_sink",
    ),
    Mutation(
        "source: nobody reads what an older run has planned of a topic that is left out",
        "connectors/kafka/source/source_stream.py",
        "if planned := moved - read_now(source, moved):",
        "if planned := set():",
        "tests/unit/test_source_stream.py"
        "::test_a_batch_that_an_older_run_has_planned_with_a_topic_that_is_left_out",
    ),
    Mutation(
        "log: options bind from the first run on, not from a start alone",
        LOG,
        "if state.run_epoch or state.identity:",
        "if True:",
        "tests/unit/test_migration.py::test_a_driver_opens_the_log_and_its_options_count_from_then_on",
    ),
    Mutation(
        "log: a migration begins behind what is committed, not behind what is planned",
        "connectors/pipeline/migration.py",
        "progress.planned_ends if planned_batch == SKIP else progress.ends",
        "progress.planned_ends",
        "tests/unit/test_migration.py::test_the_word_decides_where_it_begins",
    ),
    Mutation(
        "log: a migrated pipeline does not start beside its old query",
        "connectors/pipeline/starting_points.py",
        "        check_stopped(log.state.asked)",
        "        pass",
        "tests/unit/test_source_stream.py"
        "::test_the_query_of_a_migration_must_not_go_on_before_the_first_checkpoint",
    ),
    Mutation(
        "log in an object store: put if absent",
        "transactions/object_store.py",
        'self._store.put(name, data, mode="create")',
        'self._store.put(name, data, mode="overwrite")',
        "tests/unit/test_object_store_backend.py::test_of_many_drivers_that_open_at_once_one_can_decide",
    ),
    Mutation(
        "log in HDFS: put if absent",
        "connectors/spark/hdfs_backend.py",
        "self.rename_options = gateway.new_array(fs.Options.Rename, 0)\n",
        "self.rename_options = gateway.new_array(fs.Options.Rename, 1)\n"
        "        self.rename_options[0] = fs.Options.Rename.OVERWRITE\n",
        "tests/integration/test_hdfs_log.py::test_the_contract_of_every_backend",
    ),
    Mutation(
        "log in HDFS: a change follows what is acted on",
        "connectors/spark/hdfs_backend.py",
        "            self._make_durable()\n            # Else",
        "            # Else",
        "tests/integration/test_hdfs_log.py::test_what_is_acted_on_is_followed_by_a_change",
    ),
    Mutation(
        "log in HDFS: a second look after that change",
        "connectors/spark/hdfs_backend.py",
        "                return is_new and found == data",
        "                return is_new",
        "tests/integration/test_hdfs_log.py::test_a_name_that_another_has_taken_after_a_failover_is_not_ours",
    ),
    Mutation(
        "log: at the address of its checkpoint",
        "transactions/checkpoint_location.py",
        "        return LogLocation(self.part(_LOG).address, self.options)\n",
        "        return LogLocation(Path.home() / _LOG)\n",
        "tests/unit/test_checkpoint_location.py::test_an_address_has_its_log_below_it",
    ),
    Mutation(
        "log: an address has no sink that decides on one disk",
        "connectors/pipeline/checkpoint_address.py",
        "        folder = folder_on_disk(sink)\n",
        "        folder = None\n",
        "tests/unit/test_checkpoint_address.py::test_what_is_decided_may_not_lie_on_one_machine",
    ),
    Mutation(
        "files: what is gone was lost",
        "connectors/files/local_folder.py",
        "            return Outcome.ABORTED\n",
        "            return Outcome.ALREADY_COMMITTED\n",
        "tests/unit/test_file_sink.py::test_a_hidden_file_that_is_gone_was_lost",
    ),
    Mutation(
        "files: the sweep takes its own log's only",
        "connectors/files/file_committer.py",
        "[:2] == mine and",
        "[:1] == mine[:1] and",
        "tests/unit/test_file_sink.py::test_lingering_is_exactly_the_owners",
    ),
    Mutation(
        "files in a store: a sweep asks for the mark before it deletes a file",
        OBJECT_FOLDER,
        '            if self._store.size_of(f"{_COMMITTED}/{name.decode()}") is None:\n',
        "            if True:\n",
        ON_OBJECTS + "test_what_is_committed_survives_the_sweep_of_what_was_not_cleaned",
    ),
    Mutation(
        "files in a store: a bucket that is away or new proves no loss",
        OBJECT_FOLDER,
        "            elif self._store.has_any(_MANIFESTS):\n",
        "            elif True:\n",
        ON_OBJECTS + "test_a_bucket_that_is_away_proves_nothing",
    ),
    Mutation(
        "files in a store: the commit is a put if absent",
        OBJECT_FOLDER,
        'self._store.put_if_absent(f"{_COMMITTED}/{name}", mark)',
        'self._store.put(f"{_COMMITTED}/{name}", mark) is None',
        ON_OBJECTS + "test_of_drivers_that_commit_at_the_same_time_one_has_done_it",
    ),
    Mutation(
        "files in a store: a store that overwrites is refused",
        OBJECT_FOLDER,
        "            self._store.check_exclusive()\n",
        "",
        ON_OBJECTS + "test_a_store_that_overwrites_is_refused_before_anything_is_written",
    ),
    Mutation(
        "files in a store: who was swept while he uploaded is not prepared",
        OBJECT_FOLDER,
        'if self._store.size_of(f"{_TRANSACTIONS}/{transaction_id}") is None:',
        "if False:",
        ON_OBJECTS + "test_an_upload_that_ends_after_its_sweep_stays_invisible",
    ),
    Mutation(
        "files in a store: the sweep knows of an upload before it begins",
        OBJECT_FOLDER,
        '            self._store.put(f"{_TRANSACTIONS}/{transaction_id}", name.encode())\n'
        '            crash_points.reach("upload_started")\n'
        "            size = file.seek(0, os.SEEK_END)\n"
        '            self._store.put(f"{_DATA}/{name}", file)\n',
        "            size = file.seek(0, os.SEEK_END)\n"
        '            self._store.put(f"{_DATA}/{name}", file)\n'
        '            crash_points.reach("upload_started")\n'
        '            self._store.put(f"{_TRANSACTIONS}/{transaction_id}", name.encode())\n',
        "tests/unit/test_object_file_kill.py::test_killed_in_a_batch",
    ),
    Mutation(
        "files in a store: a refusal in phase 2 leaves the end unknown",
        OBJECT_FOLDER,
        '        raise OSError(f"{error.what} {error.cause}") from error\n',
        "        raise\n",
        ON_OBJECTS + "test_a_bucket_that_is_away_proves_nothing",
    ),
    Mutation(
        "files in a store: what comes while one looks is not abandoned",
        OBJECT_FOLDER,
        "            files = self._store.names(_DATA)\n"
        "            open_ids = self._store.names(_TRANSACTIONS)\n",
        "            open_ids = self._store.names(_TRANSACTIONS)\n"
        "            files = self._store.names(_DATA)\n",
        ON_OBJECTS + "test_what_is_committed_while_one_looks_is_not_abandoned",
    ),
    Mutation(
        "postgres: what is gone is asked for its mark",
        "connectors/postgres/prepared_committer.py",
        "        except Gone:\n            return self.marks.proof(connection, one)\n",
        "        except Gone:\n            return Outcome.ALREADY_COMMITTED\n",
        "tests/integration/test_postgres_sink.py::test_what_an_operator_rolled_back_is_proven_aborted",
    ),
    Mutation(
        "postgres: what this user may not commit is not decided",
        "connectors/postgres/prepared_committer.py",
        "            if not roles.may_end:\n",
        "            if False:\n",
        "tests/integration/test_postgres_sink.py"
        "::test_what_another_user_has_prepared_is_not_decided",
    ),
    Mutation(
        "postgres: a checkpoint that this user may not commit is not tried again",
        "connectors/postgres/prepared_committer.py",
        "                raise AuthenticationError(\n",
        "                raise PhaseOneError(\n",
        "tests/integration/test_postgres_sink.py"
        "::test_what_another_user_has_prepared_is_not_decided",
    ),
    Mutation(
        "postgres: the sweep finds everything whose commit the check accepts",
        "connectors/postgres/prepared_id.py",
        "for gid, _, _, may_end in rows if may_end]\n",
        "for gid, role, user, _ in rows if role == user]\n",
        "tests/integration/test_postgres_sink.py"
        "::test_a_superuser_sweeps_what_its_tasks_prepared_as_another_user",
    ),
    Mutation(
        "postgres: the sweep leaves alone what its user may not end",
        "connectors/postgres/prepared_id.py",
        "for gid, _, _, may_end in rows if may_end]\n",
        "for gid, _, _, may_end in rows]\n",
        "tests/integration/test_postgres_sink.py::test_a_user_does_not_sweep_what_he_may_not_end",
    ),
    Mutation(
        "write-ahead: rows and mark in one transaction",
        "connectors/wal/write_ahead_committer.py",
        "            with self.marks.transaction():\n",
        "            if True:\n",
        "tests/integration/test_write_ahead_crashes.py"
        "::test_rows_and_mark_in_one_transaction_leave_no_window",
    ),
    Mutation(
        "write-ahead: the mark is asked for before anything is sent",
        "connectors/wal/write_ahead_committer.py",
        "        if self.marks.is_checkpoint_committed(one.subtask, one.checkpoint_id):\n",
        "        if False:\n",
        "tests/integration/test_write_ahead_crashes.py::test_behind_the_mark_there_is_no_window",
    ),
    Mutation(
        "recovery: a refused row that nobody has resolved is kept",
        RECOVERY,
        "            resolved = refused and any(one.token in self._resolved for one in mine)\n",
        "            resolved = refused\n",
        "tests/unit/test_refused_rows.py::test_what_nobody_has_resolved_is_never_given_up",
    ),
    Mutation(
        "recovery: a permanent error is no refused row",
        RECOVERY,
        "            refused = isinstance(error, RecordRefusedError)\n",
        "            refused = True\n",
        "tests/unit/test_refused_rows.py::test_only_a_refused_row_is_given_up",
    ),
    Mutation(
        "write-ahead: a task knows which start it belongs to",
        "connectors/wal/write_ahead_sink.py",
        "buffer=buffer, start=start)",
        'buffer=buffer, start="0" * START_LENGTH)',
        "tests/unit/test_write_ahead_sink.py"
        "::test_a_copy_of_a_folder_that_counts_its_runs_again_is_not_taken_for_the_first",
    ),
    Mutation(
        "savepoint: nothing pending is in it",
        "transactions/savepoint.py",
        "    decision = dataclasses.replace(log.decision, committables=())\n",
        "    decision = log.decision\n",
        "tests/unit/test_savepoint.py::test_what_was_written_is_read_back",
    ),
    Mutation(
        "savepoint: no older decision matches anything",
        "transactions/savepoint.py",
        "generation=savepoint.state.generation + 1,",
        "generation=savepoint.state.generation,",
        "tests/unit/test_savepoint.py::test_a_restored_log_goes_on_under_a_name_of_its_own",
    ),
    Mutation(
        "savepoint: nothing is produced twice unasked",
        "connectors/pipeline/restoring.py",
        "        if offset > saved.get(name, 0)\n",
        "        if offset < saved.get(name, 0)\n",
        "tests/unit/test_restoring.py::test_output_that_is_newer_would_be_produced_twice",
    ),
    Mutation(
        "savepoint: a restore that was cut off in a store is no new pipeline",
        "connectors/pipeline/run.py",
        "if not log.log_id:",
        "if False:",
        "tests/unit/test_savepoint_address.py"
        "::test_a_restore_that_is_killed_is_repeated_or_refused",
    ),
    Mutation(
        "savepoint: of two restores at once the slower one stops",
        "connectors/pipeline/restored_checkpoint.py",
        "        if log_is_begun(self.run.checkpoint):\n",
        "        if False:\n",
        "tests/unit/test_savepoint_address.py::test_of_two_starts_at_once_the_slower_one_stops",
    ),
    Mutation(
        "savepoint: a pipeline that came first keeps its log",
        "connectors/pipeline/restored_checkpoint.py",
        'if files.get(BOUND_TO) != facts["log_id"].encode():',
        "if False:",
        "tests/unit/test_savepoint_address.py::test_a_pipeline_that_comes_first_keeps_its_log",
    ),
    Mutation(
        "savepoint: a file in a store is what was written there",
        "transactions/savepoint_place.py",
        "if facts != savepoint.files[name]:",
        "if False:",
        "tests/unit/test_savepoint_address.py::test_a_file_that_was_changed_is_not_restored",
    ),
    Mutation(
        "savepoint: files of one checkpoint",
        "connectors/spark/checkpoint_files.py",
        "parts[-1].isdecimal() and int(parts[-1]) <= batch_id",
        "parts[-1].isdecimal()",
        "tests/unit/test_restoring.py::test_a_folder_begins_as_the_first_one_was",
    ),
    Mutation(
        "savepoint: the last checkpoint is finished",
        "connectors/cli/savepoint.py",
        "if spark and not is_finished(spark, number) else []",
        "if spark and is_finished(spark, number) else []",
        "tests/integration/test_savepoints.py"
        "::test_a_killed_pipeline_has_to_finish_its_checkpoint_first",
    ),
    Mutation(
        "savepoint: no driver has gone on meanwhile",
        "connectors/cli/savepoint.py",
        "now.tail != savepoint.log.sequence:",
        "now.tail != reader.state.tail:",
        "tests/unit/test_savepoint_command.py"
        "::test_a_continuous_driver_that_decides_before_the_brokers_are_asked_is_seen",
    ),
    Mutation(
        "source: a pattern's offsets contain the ids of all its topics",
        "connectors/kafka/source/source_stream.py",
        "self._keeps_ids = self._has_pattern or not self._has_driver",
        "self._keeps_ids = not self._has_driver",
        "tests/unit/test_source_stream.py::test_the_offsets_of_a_pattern_contain_the_ids_of_all_its_topics",
    ),
    Mutation(
        "source: without a driver the offsets contain the ids",
        "connectors/kafka/source/source_stream.py",
        "self._keeps_ids = self._has_pattern or not self._has_driver",
        "self._keeps_ids = self._has_pattern",
        "tests/unit/test_source_stream.py::test_a7_without_a_driver_the_offsets_contain_the_ids",
    ),
    Mutation(
        "source: a batch between offsets with and without ids is read in one piece",
        "connectors/kafka/source/source_stream.py",
        "was = {**({} if self._has_driver else will), **self._ids(start)}",
        "was = {**self._ids(start)}",
        "tests/unit/test_source_stream.py"
        "::test_a7_offsets_of_an_older_version_without_ids_go_on_and_get_them",
    ),
    Mutation(
        "source: a topic of a pattern that is gone is data loss",
        "connectors/kafka/source/source_stream.py",
        "if gone := read_now(source, missing):",
        "if gone := set():",
        "tests/unit/test_source_stream.py::test_a_topic_of_a_pattern_that_is_gone_is_data_loss",
    ),
    Mutation(
        "source: a pattern may have begun with no topic",
        "connectors/kafka/source/source_stream.py",
        "is_decided = bool(offsets) or (bool(start) and self._has_pattern)",
        "is_decided = bool(offsets)",
        "tests/unit/test_source_stream.py::test_a_pattern_that_began_with_no_topic_is_not_looked_up_again",
    ),
    Mutation(
        "start: sources of some partitions keep their starts",
        "connectors/pipeline/starting_points.py",
        "(same and (not some or parse_offsets(text).keys() <= some))",
        "same",
        "tests/unit/test_source_stream.py::test_sources_of_some_partitions_keep_their_starts_when_they_change_places",
    ),
    Mutation(
        "source: a batch without records is no start of a batch",
        "connectors/kafka/source/batch_wait.py",
        "if waiting == 0 or (waiting < self._least and not expired):",
        "if waiting < self._least and not expired:",
        "tests/unit/test_batch_wait.py",
    ),
    Mutation(
        "verify: a partition without a leader is asked for again",
        "connectors/operations/bounded_scan.py",
        "again = is_passing(error) or is_missing(error)",
        "again = False",
        "tests/unit/test_verify_parts.py",
    ),
    Mutation(
        "janitor: no sweep after the end",
        "transactions/sweeper.py",
        "if self._shut or not self._idle",
        "if not self._idle",
        "tests/unit/test_sweeper.py",
    ),
    Mutation(
        "batch writer: an error that was caught ends the query",
        "connectors/spark/batch_writer.py",
        "if run_id == str(execution.runId()):",
        "if False:",
        "tests/integration/test_batch_writer.py::test_an_error_that_the_function_catches_ends_the_query_at_the_next_batch",
    ),
    Mutation(
        "batch writer: a batch that was left out ends the query",
        "connectors/spark/batch_writer.py",
        "if last is not None and batch_id > last.checkpoint_id + 1:",
        "if False:",
        "tests/integration/test_batch_writer.py::test_a_batch_without_a_call_ends_the_query_at_the_next_one",
    ),
    Mutation(
        "batch writer: one call a batch",
        "connectors/spark/batch_writer.py",
        "if batch_id == self._written:",
        "if False:",
        "tests/integration/test_batch_writer.py::test_a_second_call_in_a_batch_is_refused",
    ),
    Mutation(
        "batch writer: the next batch is planned by the user's setting",
        "connectors/spark/batch_writer.py",
        "spark.conf.set(_ADAPTIVE, before)",
        "pass",
        "tests/integration/test_batch_writer.py"
        "::test_the_writer_leaves_adaptive_execution_as_it_was",
    ),
    Mutation(
        "continuous: a backfill ends",
        "connectors/continuous/checkpoint_loop.py",
        "ends, decided = self._options.ends, self._shares.offsets",
        "ends, decided = None, self._shares.offsets",
        "tests/journeys/test_backfill.py",
    ),
    Mutation(
        "batch writer: commits/N is no proof",
        "connectors/spark/writer_folder.py",
        "return min(finished_checkpoint(self.checkpoint), self._number(_FINISHED))",
        "return finished_checkpoint(self.checkpoint)",
        "tests/integration/test_batch_writer.py"
        "::test_a_decided_batch_whose_repeat_is_skipped_is_committed",
    ),
    Mutation(
        "query writer: a job that is decided writes nothing",
        "connectors/spark/query_run.py",
        "return dataclasses.replace(order, write=False)",
        "return order",
        "tests/integration/test_query_writer.py::test_a_job_that_runs_twice_writes_once",
    ),
    Mutation(
        "query writer: what was lost is written again",
        "connectors/spark/query_run.py",
        "return order.for_lost(coordinator.lost, [self._options.sink.name])",
        "return dataclasses.replace(order, write=False)",
        "tests/integration/test_query_writer.py::test_what_the_broker_has_aborted_is_written_again",
    ),
    Mutation(
        "query writer: state that cannot be made twice is refused",
        "connectors/spark/replayable_query.py",
        "if found is not None:",
        "if False:",
        "tests/integration/test_query_writer.py"
        "::test_state_that_spark_cannot_make_twice_is_refused",
    ),
    Mutation(
        "query writer: the commit process ends with its JVM",
        "connectors/spark/commit_process.py",
        "while is_running(pid, born):",
        "while True:",
        "tests/integration/test_query_writer.py::test_what_the_broker_has_aborted_is_written_again",
    ),
    Mutation(
        "start: SIGTERM to spark-submit stops between two checkpoints",
        "connectors/spark/submitted.py",
        "before[name] = of_java.Signal.handle(of_java.Signal(name), _Forwarder())",
        "pass",
        "tests/journeys/test_spark_submit.py::test_a_job_file_is_stopped_killed_and_goes_on",
    ),
    Mutation(
        "query writer: only the newest plan is committed",
        "connectors/spark/query_run.py",
        "not owners <= {ours} or number != planned:",
        "number != planned:",
        "tests/integration/test_query_run.py::test_messages_of_an_older_plan_are_refused_and_harm_nobody",
    ),
    Mutation(
        "query writer: an abort of an older plan harms nobody",
        "connectors/spark/query_run.py",
        "if isinstance(now, _Open) and owners <= {now.opened.coordinator.owner}:",
        "if isinstance(now, _Open):",
        "tests/integration/test_query_run.py::test_messages_of_an_older_plan_are_refused_and_harm_nobody",
    ),
    Mutation(
        "query writer: it sweeps after an abort",
        "connectors/spark/open_run.py",
        "self.coordinator.resume()",
        "pass",
        "tests/integration/test_query_run.py::test_what_a_sibling_opens_after_the_abort_is_swept",
    ),
    Mutation(
        "query writer: a plan without a commit is given up",
        "connectors/spark/query_run.py",
        "if now is None or not now.ends.expired():",
        "if True:",
        "tests/integration/test_query_run.py::test_a_plan_that_nobody_commits_is_given_up",
    ),
    Mutation(
        "query writer: another name does not write a decided batch again",
        "connectors/spark/writer_folder.py",
        "decided = _last_decided(log)",
        "decided = -1",
        "tests/integration/test_query_writer.py"
        "::test_another_app_id_does_not_write_a_decided_batch_again",
    ),
    Mutation(
        "batch writer: a sibling is what this run has called",
        "connectors/spark/batch_writer.py",
        "siblings=_served(run_id)",
        "siblings=_served()",
        "tests/unit/test_batch_writer.py",
    ),
    Mutation(
        "source: a silent leader has no offset",
        "connectors/kafka/source/listed_offsets.py",
        "silence_in((each.offset for each in answers.values()), lowest)",
        "None",
        "tests/unit/test_source_questions.py::test_a_leader_that_does_not_answer_is_asked_again",
    ),
    Mutation(
        "source: offsets of a group in an open transaction are waited for",
        "connectors/kafka/source/starting_group.py",
        "read_markers(group, [*keys], deadline)",
        "read_markers(group, [*keys], deadline, stable=False)",
        "tests/integration/test_starting_group.py"
        "::test_offsets_in_an_open_transaction_count_when_it_has_ended",
    ),
    Mutation(
        "source: an old error of the same partition skips nothing",
        "connectors/kafka/source/range_reader.py",
        "if low <= self._position <= high:",
        "if False:",
        "tests/unit/test_range_reader_errors.py"
        "::test_an_old_error_of_the_same_partition_skips_nothing",
    ),
    Mutation(
        "source: offsets of another source are refused",
        "connectors/kafka/source/source_stream.py",
        "if topics and not any(map(source.reads_topic, topics)):",
        "if False:",
        "tests/unit/test_source_stream.py::test_offsets_of_another_source_are_refused",
    ),
    Mutation(
        "continuous: nothing behind an error is handed out",
        "connectors/native/native_consumer.py",
        "sound[at:] &= ~same",
        "pass",
        "tests/unit/test_native_clients.py"
        "::test_nothing_behind_an_error_of_its_partition_is_handed_out",
    ),
    Mutation(
        "verify: what came while it looked may be missing",
        "connectors/operations/identity_search.py",
        'excess & ~is_out & (rows["late"] == 0)',
        "excess & ~is_out",
        "tests/unit/test_verify_parts.py",
    ),
    Mutation(
        "verify: only what is missing is waited for",
        "connectors/operations/verdict.py",
        "wrong <= {LOST_TAIL, LOST_MIDDLE}",
        "True",
        "tests/unit/test_verify_live.py",
    ),
    Mutation(
        "verify: what was there before must have come out",
        "connectors/operations/verify.py",
        "late = max(begin, due)",
        "late = begin",
        "tests/unit/test_verify_live.py",
    ),
    Mutation(
        "verify: the input's last ends are asked for behind those of the output",
        "connectors/operations/verify.py",
        "    there = _input(ends, options, clock)\n",
        "    there = first\n",
        "tests/unit/test_verify_live.py",
    ),
    Mutation(
        "verify: a part of the record must be unique",
        "connectors/operations/verify_options.py",
        "return not (whole or self.allow_repeats)",
        "return False",
        "tests/integration/test_verify.py"
        "::test_a_loss_and_a_duplicate_of_one_key_are_not_taken_for_success",
    ),
    Mutation(
        "query writer: an earlier name does not write a decided batch again",
        "connectors/spark/writer_folder.py",
        "if decided < batch_id or last >= batch_id or is_sibling:",
        "if decided < batch_id or last >= 0 or is_sibling:",
        "tests/unit/test_writer_folder.py",
    ),
    Mutation(
        "query writer: another name stops the run of the first one",
        "connectors/spark/writer_folder.py",
        "        if accept_duplicates:\n",
        "        if True:\n",
        "tests/integration/test_query_run.py::test_a_renamed_query_stops_the_one_that_still_runs",
    ),
    Mutation(
        "query writer: each start sweeps what another name has left",
        "connectors/spark/writer_folder.py",
        "run.sweep_other(stopped, finished=done)",
        "pass",
        "tests/unit/test_writer_folder.py",
    ),
    Mutation(
        "query writer: a broken log of another name may hide a decision",
        "connectors/spark/writer_folder.py",
        "if not (0 <= began <= last and finished < last):",
        "if finished >= batch_id:",
        "tests/unit/test_writer_folder.py",
    ),
    Mutation(
        "query writer: what another name has decided is not aborted",
        RECOVERY,
        "if last is None or not last.committables or last.checkpoint_id <= finished:",
        "if True:",
        "tests/unit/test_sweeper.py",
    ),
    Mutation(
        "query writer: of another name, no newer run is swept",
        COMMITTER,
        "owned.transactional_id != owner_id(owner.application_id)",
        "False",
        f"{ON_SINK}test_rule_1_x13_x21_a_sweep_is_of_one_log_and_its_older_runs",
    ),
    Mutation(
        "query writer: a driver that was quiet does not stop a newer one",
        "connectors/spark/query_run.py",
        "if before is not None:",
        "if False:",
        "tests/integration/test_query_run.py::test_a_driver_that_was_quiet_does_not_stop_a_newer_one",
    ),
    Mutation(
        "log: what was compacted away is not taken for what is known",
        LOG,
        "if known is not None and floor <= known.tail + 1 <= last + 1:",
        "if known is not None:",
        "tests/unit/test_decision_log.py",
    ),
)

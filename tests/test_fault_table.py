"""Faults of a rented machine, what a sweep does then, and the test that shows it.

| # | fault | what happens | shown by |
|---|---|---|---|
| 1 | the worker raises, exits | `failed`, exit code, last lines of stderr | execution/test_run_trials.py::test_the_end_of_a_worker_decides_the_record |
| 2 | segfault, abort | `failed`, the signal's name, faulthandler's text | execution/test_run_trials.py::test_the_end_of_a_worker_decides_the_record |
| 3 | the worker is killed | `killed` | execution/test_run_trials.py::test_the_end_of_a_worker_decides_the_record |
| 4 | the host's OOM killer | `host_oom`, by the kernel's counters | execution/test_progress_and_host.py::test_a_killed_worker_is_the_host_out_of_memory_if_the_kernel_counted_a_kill |
| 4 | | the worker is killed before the sweep | execution/test_progress_and_host.py::test_the_kernel_would_kill_a_worker_before_the_sweep |
| 5 | CUDA out of memory | `oom`, an answer, with the memory at that time | worker/test_measured.py::test_out_of_memory_has_the_memory_in_use_at_the_error |
| 5 | | a crash afterwards does not lose it | execution/test_run_trials.py::test_the_end_of_a_worker_decides_the_record |
| 5 | | never run again | execution/test_run_trials.py::test_a_trial_with_an_answer_does_not_run_again_and_a_failed_one_does |
| 6 | the GPU is not empty | waited for | execution/test_gpus.py::test_a_gpu_that_is_not_empty_is_waited_for |
| 6 | | otherwise retired, with the name of the program | execution/test_trials_on_gpus.py::test_a_sweep_whose_only_gpu_is_full_ends_with_33_and_the_reason |
| 6 | memory taken during a trial | `contended` | worker/test_measured.py::test_memory_taken_by_another_program_during_the_trial_is_contention |
| 7 | a hang that ignores SIGTERM, grandchildren | `timeout`; the whole group is killed | execution/test_run_trials.py::test_a_hanging_worker_is_ended_with_its_children_though_it_ignores_sigterm |
| 8 | alive without progress | `stalled`, by the heartbeat of the training | execution/test_progress_and_host.py::test_a_worker_without_progress_is_ended_as_stalled |
| 9 | a process that cannot be killed | bounded wait, that GPU retired | execution/test_trials_on_gpus.py::test_a_worker_that_cannot_be_killed_costs_its_gpu_and_not_the_sweep |
| 10 | the sweep is killed, SSH lost | no orphan, finished trials are kept | execution/test_ends_of_the_sweep.py::test_a_killed_sweep_leaves_neither_worker_nor_grandchild |
| 10 | | the same command continues | execution/test_ends_of_the_sweep.py::test_after_a_killed_sweep_the_same_command_continues |
| 10 | Ctrl-C | workers and sweep end | execution/test_ends_of_the_sweep.py::test_ctrl_c_ends_the_workers_and_the_sweep |
| 10 | repeatedly, at any time | the tables of an undisturbed run | execution/test_stress.py::test_killed_at_random_times_no_record_is_lost_and_no_process_is_left |
| 10 | signals to any process of two sweeps | nothing lost, run twice or left | stress/test_signals.py::test_signals_to_any_process_lose_nothing_run_nothing_twice_and_leave_nothing |
| 10 | Ctrl-C, SIGTERM, SIGHUP | tables and page of finished trials, exit code 128 + n | sweep/test_sweep_is_interrupted.py::test_a_signal_leaves_tables_and_page_of_finished_trials |
| 10 | Ctrl-C for a sweep that was started with `&` | the same | sweep/test_sweep_is_interrupted.py::test_sigint_ends_a_sweep_that_a_script_started_in_the_background |
| 10 | Ctrl-C during the imports of the warmed process | no traceback | execution/test_warm_process.py::test_ctrl_c_during_its_imports_prints_no_traceback_and_does_not_end_it |
| 11 | a torn or edited record | set aside, runs again | storage/test_records.py::test_a_torn_record_is_set_aside_and_counts_as_absent |
| 11 | a record is set aside | a line with place and reason | sweep/test_nothing_lost.py::test_a_record_that_is_set_aside_is_reported_and_its_trial_runs_again |
| 11 | the records are gone | rows of the tables stay | sweep/test_nothing_lost.py::test_a_sweep_in_a_fresh_clone_keeps_the_rows_of_the_kept_tables |
| 11 | a record that no table holds | left out, exit code 3 | sweep/test_nothing_lost.py::test_one_record_that_no_table_can_hold_is_left_out |
| 11 | | a flipped byte is noticed | storage/test_records.py::test_any_flipped_byte_is_noticed_or_changes_nothing |
| 12 | the disk is full | an error, nothing partial | storage/test_records.py::test_a_full_disk_is_reported_in_one_sentence_and_leaves_nothing |
| 12 | | continues afterwards | execution/test_ends_of_the_sweep.py::test_a_full_disk_is_an_error_and_afterwards_the_same_command_continues |
| 13 | two sweeps, one folder | each trial once | execution/test_ends_of_the_sweep.py::test_two_sweeps_in_one_folder_run_each_trial_once |
| 13 | a signal while a trial starts | its lock is kept until its worker has ended | execution/test_ends_of_the_sweep.py::test_a_signal_right_after_the_fork_does_not_release_the_lock_of_a_running_trial |
| 13 | | a sibling that was answered meanwhile does not run | execution/test_siblings.py::test_a_sibling_that_another_sweep_answered_meanwhile_does_not_run_again |
| 13 | | a sweep that waits says for what | execution/test_waiting.py::test_a_trial_of_another_sweep_is_waited_for_with_a_word |
| 14 | | and says so | execution/test_waiting.py::test_a_gpu_of_another_sweep_is_waited_for_with_a_word |
| 14 | a link in place of the GPU's lock | costs that GPU only | execution/test_gpus.py::test_something_else_in_place_of_the_lock_costs_that_gpu_only |
| 14 | two sweeps, one GPU | the second waits | execution/test_trials_on_gpus.py::test_a_second_sweep_waits_for_the_gpu_until_its_holder_is_killed |
| 15 | ECC, Xid, GPU lost | `device_fault` overrides the record; GPU retired; runs on another | execution/test_trials_on_gpus.py::test_errors_of_the_gpu_override_the_record_and_the_trial_runs_on_another |
| 15 | | no other GPU: exit code 33 | execution/test_trials_on_gpus.py::test_without_another_gpu_the_fault_is_stored_and_the_sweep_ends_with_33 |
| 15 | | Xid errors of programs do not count | execution/test_gpus.py::test_only_xid_errors_of_the_gpu_are_a_fault |
| 16 | no NVML | columns null, with the reason | worker/test_measured.py::test_without_a_driver_the_counters_still_count_and_the_row_lists_what_is_missing |
| 16 | not supported | one figure less | measurement/test_nvml.py::test_a_missing_value_is_none_with_its_reason |
| 16 | a container's process list | judged by memory | worker/test_measured.py::test_in_a_container_only_the_processes_are_missing |
| 17 | everything fails | stops after 5 in a row with the reason, exit code 34 | execution/test_run_trials.py::test_too_many_failures_in_a_row_stop_the_sweep_with_the_reason |
| 18 | another card or driver | another trial | sweep/test_sweep_on_gpus.py::test_another_card_or_driver_is_another_trial |
| 18 | other versions | another trial | sweep/test_sweep_on_gpus.py::test_other_versions_are_other_trials |
| 19 | `| head`, a closed terminal | continues without output, loses nothing | sweep/test_closed_output.py::test_the_sweep_continues_without_output_and_loses_nothing |
| 19 | standard output on a full disk | continues, exit code 1 | sweep/test_closed_output.py::test_a_full_disk_for_the_output_is_reported_once_and_loses_no_result |
| 20 | a figure fails to draw | records untouched, can be drawn again | report/test_report.py::test_a_figure_that_fails_costs_only_itself |
| 21 | the warmed process is killed | restarted; its workers finish | execution/test_warm_process.py::test_when_it_is_killed_running_workers_finish_and_the_others_run |
| 21 | | without pidfds they run again, none is `failed` | execution/test_warm_process.py::test_without_pidfds_interrupted_trials_run_again |
| 21 | it is stopped | replaced | execution/test_warm_process.py::test_when_it_is_stopped_it_is_replaced |
| 21 | it ends or hangs in its imports | restarted, within `warm_up_s` | execution/test_warm_process.py::test_if_it_ends_or_hangs_during_imports_it_is_restarted |
| 21 | repeatedly | one sentence, exit code 70 | execution/test_warm_process.py::test_after_two_restarts_it_is_given_up_with_one_sentence |
| 22 | an unforeseen error | one sentence, a file, exit code 70 | test_last_resort.py::test_an_unforeseen_error_is_one_sentence_with_a_file_and_70 |
| 22 | in a sweep | tables and page of finished trials | sweep/test_sweep_is_interrupted.py::test_an_unforeseen_error_is_one_sentence_with_a_file_and_keeps_the_tables |
| 23 | a file system without locks | one sentence before the first trial, exit code 2 | sweep/test_network_volumes.py::test_no_locks |
| 23 | folders that cannot be synchronised | named, and the sweep continues | sweep/test_network_volumes.py::test_folders_that_cannot_be_synchronised |
| 23 | read-only `records/` | one sentence before the first trial, exit code 2 | sweep/test_network_volumes.py::test_records_that_are_read_only |
| 23 | temporary files of killed sweeps | removed by the next one | storage/test_atomic.py::test_only_files_of_ended_writers_are_removed |
| 24 | escape sequences in foreign text | shown as text | test_foreign_text.py::test_the_table_of_a_report |
| 24 | a pickle in a folder of results | not read | test_security.py::test_a_pickle_in_place_of_a_recorded_history_is_refused_and_not_run |
| 25 | wrong keys, values, files, paths | exit code 2, one sentence per fault | bad_input/test_bad_input.py::test_a_bad_input_is_one_sentence_per_fault |
| 25 | | the same of real commands | bad_input/test_real_commands.py::test_a_command_ends_with_one_sentence |
| 25 | random input | exit codes 0 and 2 only | bad_input/test_fuzz.py::test_words_of_a_sweep |
| 26 | a long `TMPDIR` | sockets in a short folder | execution/test_warm_process.py::test_sockets_are_made_where_their_paths_are_short_enough |
| 27 | no network | a hub id is answered within 3 s | bad_input/test_real_commands.py::test_a_hub_that_is_silent_is_given_up |
| 28 | a rank of a trial on several GPUs runs out of memory, fails, is killed or hangs | so does the trial, with the rank's words | execution/test_ranks.py::test_the_end_of_a_rank_decides_the_trial |
| 28 | | no other rank is left | execution/test_ranks.py::test_no_rank_outlives_its_trial |
| 28 | one of its GPUs breaks | that one is retired; trials that need fewer run | execution/test_ranks.py::test_a_broken_gpu_leaves_too_few_for_a_trial |
| 29 | a slot of Slurm is killed | replaced; other slots run its trials, each once | cluster/test_submitit.py::test_slots_that_are_killed_lose_nothing_run_nothing_twice_and_leave_nothing |
| 29 | it is preempted or at its time limit | requeued, not replaced | cluster/test_array.py::test_a_slot_that_is_requeued_is_not_lost |
| 29 | slots are lost one after the other | one sentence, exit code 70 | cluster/test_array.py::test_slots_that_are_lost_one_after_the_other_end_the_sweep |
| 29 | the command is killed | started again, it continues with its slots | cluster/test_slurm.py::test_slots_of_an_earlier_start_with_the_same_command_go_on |
| 29 | a node with other versions | refused before its first trial, exit code 2 | cluster/test_submitit.py::test_a_slot_with_other_versions_refuses_before_its_first_trial |
"""  # noqa: E501

import ast
from pathlib import Path

import pytest

ROWS = [
    [cell.strip() for cell in line.strip("|").replace("`| head`", "head").split("|")]
    for line in (__doc__ or "").splitlines()
    if line.startswith("| ") and line[2].isdigit()
]


@pytest.mark.parametrize("place", [row[-1] for row in ROWS])
def test_the_test_exists(place: str) -> None:
    file, _, name = place.partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_a_test() -> None:
    assert {int(row[0]) for row in ROWS} == set(range(1, 30))

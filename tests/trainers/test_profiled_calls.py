"""TRL's profiling is collected, but only inside the context."""

from __future__ import annotations

from trl.extras.profiling import ProfilingContext

from rlhf_cli.trainers.step_profile import profiled_calls
from tests.support.signatures import parameters


def test_the_seam_is_told_the_seconds_of_a_call_when_it_ends() -> None:
    """A TRL that moves `_log_metrics` fails here."""
    assert parameters(ProfilingContext._log_metrics) == ["self", "duration"]
    with profiled_calls() as calls:
        context = ProfilingContext("GRPOTrainer.compute_loss", report_to=[])
        context._log_metrics(0.25)
        context._log_metrics(0.5)
        with ProfilingContext("GRPOTrainer._prepare_inputs", report_to=[]):
            pass
        taken = calls.taken()
        assert calls.taken() == {}
    assert taken["profiling/Time taken: GRPOTrainer.compute_loss"] == 0.75
    assert 0 < taken["profiling/Time taken: GRPOTrainer._prepare_inputs"] < 1
    context._log_metrics(1.0)
    assert calls.taken() == {}  # negative control: the context is closed


def test_what_is_not_wanted_is_not_collected() -> None:
    before = ProfilingContext._log_metrics
    with profiled_calls(wanted=False) as calls:
        assert ProfilingContext._log_metrics is before
        ProfilingContext("unwanted", report_to=[])._log_metrics(1.0)
    assert calls.taken() == {}

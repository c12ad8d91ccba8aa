"""Messages, exit codes, and errors that cross processes."""

from __future__ import annotations

import pickle

from gemmgen.core.errors import CompileError, GemmgenError, PlanError, Reason, SpecError, VerificationError

REASON = Reason("tile.multiple", "tile.m", "48", "a multiple of\n32", "try 64")


def test_a_reason_is_one_line_with_all_its_parts():
    assert str(REASON) == "tile.m: got 48, need a multiple of 32 (try 64) [tile.multiple]"
    assert str(Reason("none", "", "", "a GPU")) == "need a GPU [none]"


def test_a_plan_error_shows_every_reason_and_survives_pickling():
    error = PlanError("cannot be planned", [REASON, REASON])
    assert str(error).count("\n  - tile.m: got 48") == 2
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reasons, str(copy)) == (error.reasons, str(error))


def test_exit_codes_tell_a_wrong_kernel_from_a_wrong_request():
    assert VerificationError.exit_code == 1
    assert {GemmgenError.exit_code, SpecError.exit_code, CompileError.exit_code, PlanError.exit_code} == {2}

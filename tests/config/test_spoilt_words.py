"""What people mistype is refused, and the first thing suggested is what they meant.

The cases are data, made by scripts/fixtures/spoilt_words.py without a look at this project: what a word should have
been is what it was made from, or was written beside it by hand.
"""

from __future__ import annotations

import pytest

from tests.support.spoilt_words import Answered, answered, rates


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Answered]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("typed"))
        return list(answered())


def test_every_spoilt_word_is_refused(cases: list[Answered]) -> None:
    assert not [case.typed for case in cases if case.code != 2]


@pytest.mark.fault(39)
def test_nine_of_ten_of_every_kind_get_what_was_meant_first(cases: list[Answered]) -> None:
    spoilt = [case for case in cases if case.right]
    print(rates(spoilt))
    assert len(spoilt) >= 150
    assert sum(case.is_right for case in spoilt) >= 0.97 * len(spoilt), rates(spoilt)
    for kind in {case.kind for case in spoilt}:
        of_kind = [case.is_right for case in spoilt if case.kind == kind]
        assert sum(of_kind) >= 0.9 * len(of_kind), rates(spoilt)


def test_a_word_that_is_like_nothing_gets_no_absurd_suggestion(cases: list[Answered]) -> None:
    """Beside a list of what there is, nothing."""
    strangers = [case for case in cases if not case.right]
    assert len(strangers) >= 20
    assert not [(case.typed, case.first) for case in strangers if case.first not in ("", "list")]

"""An empty working folder, a model with a chat template, and the error of a refused experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.errors import Problems, UserError
from tests.support.model_copies import model_copy
from tests.support.planning import Refused, planned

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(autouse=True)
def workplace(place: Path) -> Path:
    """An empty folder."""
    return place


@pytest.fixture
def refused() -> Refused:
    """`refused("exp=quickstart", ...)`: the one UserError it ends in."""

    def call(*words: str) -> UserError:
        with pytest.raises(UserError) as caught:
            planned(*words)
        assert not isinstance(caught.value, Problems), str(caught.value)
        assert caught.value.exit_code == 2
        return caught.value

    return call


@pytest.fixture
def chat_model(place: Path, request: pytest.FixtureRequest) -> str:
    """A folder of a model with a real chat template: Qwen2.5's, or that of the parameter."""
    import trl  # other tests of this folder do without

    from rlhf_cli.models.byte_tokenizer import byte_tokenizer

    template = getattr(request, "param", "qwen2_5")
    shipped = Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
    model_copy(place / "chat")
    tokenizer = byte_tokenizer(512)
    tokenizer.chat_template = shipped.read_text() if template != "chatml" else CHATML
    tokenizer.save_pretrained(place / "chat")
    return "model.path=chat"

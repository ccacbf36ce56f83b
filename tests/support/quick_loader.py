"""What composes in tests that are about training: files are merged once a set of choices, values are set each time.

Composing is a third of what a small run costs. Which files are merged follows from the groups that are chosen, and
Hydra sets values when it has merged them: so what a set of choices comes to is kept, and a run sets its values in a
copy. `tests/config/test_compose.py` holds it against what it stands in for, and tests of composition do without.
"""

from __future__ import annotations

import copy
import pickle

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlhf_cli.config import conf_folders
from rlhf_cli.config.compose import CONFIG_NAME, NotingLoader

_merged: dict[tuple[str, ...], bytes] = {}


class QuickLoader(NotingLoader):
    """NotingLoader with a memory. What a user's own `./conf` may change, and every error, is left to that."""

    def compose(self, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
        """Return what NotingLoader returns."""
        known = conf_folders.groups()
        values = [text for text in overrides if text.startswith("++") or (text[0] == "~" and text[1:] not in known)]
        choices = tuple(text for text in overrides if text not in values)
        is_frozen = config_name != CONFIG_NAME
        if (choices if is_frozen else conf_folders.search_dirs()[1:]) or any("hydra" in text for text in overrides):
            return super().compose(config_name, overrides)
        try:
            config, chosen = self._frozen(config_name) if is_frozen else self._chosen(choices)
            parsed = OverridesParser.create().parse_overrides(values)
            self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
            self._apply_overrides_to_config(parsed, config)
        except (HydraException, OmegaConfBaseException):
            return super().compose(config_name, overrides)
        return config, chosen

    def _chosen(self, choices: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None]]:
        if choices not in _merged:
            config, chosen = super().compose(CONFIG_NAME, list(choices))
            _merged[choices] = pickle.dumps((config, chosen, self.merged))
        config, chosen, self.merged = pickle.loads(_merged[choices])
        return config, chosen

    def _frozen(self, config_name: str) -> tuple[DictConfig, dict[str, str | None]]:
        """No file of a group is merged with it: what was stored under its name is all there is."""
        config = copy.deepcopy(ConfigStore.instance().load(f"{config_name}.yaml").node)
        OmegaConf.set_struct(config, True)
        return config, {}

"""Hydra's loader, extended to record the files it merged, so that their list is computed only once.

Hydra's own settings (logging, sweeper, 22 files) are left out of the composition: they are not needed here and took
half of its time.
"""

from __future__ import annotations

import copy

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlhf_cli.config.conf_folders import user_dir


class NotingLoader(ConfigLoaderImpl):
    """A loader that searches the user's `./conf` first; `merged` are the files of its last composition.

    Hydra's own `--config-dir` would rank below the shipped files.
    """

    def __init__(self) -> None:
        search_path = copy.deepcopy(GlobalHydra.instance().config_loader().get_search_path())
        if (user := user_dir()) is not None:
            search_path.prepend(provider="user", path=f"file://{user}", anchor="main")
        super().__init__(search_path)
        self.merged: list[ResultDefault] = []

    def compose(self, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
        """Return what Hydra composes, without its own settings, and the option chosen for each group.

        Raises the errors of Hydra's `compose`.
        """
        try:
            parsed, repo = self._parse_overrides_and_create_caching_repo(config_name, overrides)
            self.validate_sweep_overrides_legal(overrides=parsed, run_mode=RunMode.RUN, from_shell=False)
            listed = create_defaults_list(
                repo=repo, config_name=config_name, overrides_list=parsed, prepend_hydra=False, skip_missing=False
            )
            config = self._compose_config_from_defaults_list(listed.defaults, repo)
            OmegaConf.set_struct(config, True)
            self._apply_overrides_to_config(listed.config_overrides, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException(str(error)) from error
        choices = OmegaConf.to_container(OmegaConf.create(listed.overrides.known_choices))
        assert isinstance(choices, dict)
        return config, {str(key): value for key, value in choices.items()}

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.merged = defaults
        return super()._compose_config_from_defaults_list(defaults, repo)

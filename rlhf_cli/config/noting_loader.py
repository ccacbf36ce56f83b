"""Hydra's loader, which composes, and notes which files it merged: nobody has to work out their list a second time."""

from __future__ import annotations

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict


class NotingLoader(ConfigLoaderImpl):
    """A loader that looks where Hydra looks at this moment; `merged` are the files of what it composed last."""

    def __init__(self) -> None:
        super().__init__(GlobalHydra.instance().config_loader().get_search_path())
        self.merged: list[ResultDefault] = []

    def compose(self, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
        """Return what Hydra composes, without its own settings, and the option chosen of each group, also of Hydra's.

        Raises what Hydra's `compose` raises.
        """
        config = self.load_configuration(config_name, overrides, RunMode.RUN, from_shell=False)
        choices = OmegaConf.to_container(config.hydra.runtime.choices)
        assert isinstance(choices, dict)
        with open_dict(config):
            del config["hydra"]
        return config, {str(key): value for key, value in choices.items()}

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.merged = defaults
        return super()._compose_config_from_defaults_list(defaults, repo)

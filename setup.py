"""Copies the files that commands read at run time into the wheel. Everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = ("config/**/*.yaml", "cluster/*.sbatch", "requirements.txt")


class BuildWithData(build_py):
    """Copies DATA to `rlcb/data`, where `rlcb.paths` finds it. Editable installs read the clone instead."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        project = Path(__file__).resolve().parent
        for source in sorted(path for pattern in DATA for path in project.glob(pattern)):
            if source.name.startswith("local_"):
                continue  # settings for this machine alone
            target = Path(self.build_lib, "rlcb", "data", source.relative_to(project))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


setup(cmdclass={"build_py": BuildWithData})

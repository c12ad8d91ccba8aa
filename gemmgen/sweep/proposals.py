"""Proposals of a search: Optuna's samplers, behind the few calls that a search needs. Optuna is imported here only."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.extras import install_command
from gemmgen.sweep.records import SweepError
from gemmgen.sweep.search_space import Choice, SearchSpace

SamplerName = Literal["tpe", "nsga2", "random"]
SAMPLERS: tuple[str, ...] = get_args(SamplerName)

_INFEASIBLE = "infeasible"
_TRIES = 32
"""Number of times that a proposal is varied in a given number of axes before more of them change."""
_ENUMERABLE = 1_000_000
"""Spaces up to this size are looked through for the last points that were not tried."""


class Proposals:
    """Proposes points of a space that were not tried before, and learns from those that were."""

    def __init__(self, space: SearchSpace, sampler: str, seed: int, objectives: int) -> None:
        """Raises ``EnvironmentMissing`` without Optuna, ``SweepError`` for a sampler that is not known."""
        if sampler not in SAMPLERS:
            raise SweepError(f"unknown sampler {sampler!r}; known: {', '.join(SAMPLERS)}")
        self._optuna = _optuna()
        self._space = space
        self._objectives = objectives
        self._random = random.Random(seed)
        self._seen: set[Choice] = set()
        self._open: dict[Choice, Any] = {}
        self._distributions = self._make_distributions()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study = self._optuna.create_study(sampler=self._make_sampler(sampler, seed), directions=["minimize"] * objectives)

    def reserve(self, choices: Iterable[Choice]) -> None:
        """These will be tried in any case: they are not proposed."""
        self._seen.update(choices)

    def propose(self, count: int, excluded: Iterable[Choice] = ()) -> list[Choice]:
        """Up to ``count`` points that were neither proposed nor reported before; fewer only if there are no more."""
        self.reserve(excluded)
        proposed: list[Choice] = []
        while len(proposed) < count:
            trial = self._ask()
            choice = self._choice(trial.params)
            if choice in self._seen:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                varied = self._varied(choice)
                if varied is None:
                    break
                self._study.enqueue_trial(self._parameters(varied))
                trial, choice = self._ask(), varied
            self._seen.add(choice)
            self._open[choice] = trial
            proposed.append(choice)
        return proposed

    def tell(self, choice: Choice, state: Literal["complete", "pruned", "infeasible"], values: Sequence[float]) -> None:
        """Result of a point, proposed or not; ``values`` are the objectives, smaller is better, if it is complete."""
        self._seen.add(choice)
        states = self._optuna.trial.TrialState
        trial = self._open.pop(choice, None)
        if trial is None:
            self._study.enqueue_trial(self._parameters(choice))
            trial = self._ask()
        trial.set_user_attr(_INFEASIBLE, state == "infeasible")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if state == "complete":
                self._study.tell(trial, list(values))
            elif self._objectives == 1:
                self._study.tell(trial, state=states.PRUNED)
            else:
                # Only complete trials enter a population; the constraint ranks this one behind all that can be taken.
                self._study.tell(trial, [float("inf")] * self._objectives)

    def _ask(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._study.ask(self._distributions)

    def _make_distributions(self) -> dict[str, object]:
        distributions = self._optuna.distributions
        made: dict[str, Any] = {}
        for axis in self._space.axes:
            last = len(axis.settings) - 1
            if axis.ordered:
                made[axis.name] = distributions.IntDistribution(0, last)
            else:
                made[axis.name] = distributions.CategoricalDistribution(tuple(range(last + 1)))
        return made

    def _make_sampler(self, name: str, seed: int) -> Any:
        samplers = self._optuna.samplers

        def violation(trial: Any) -> tuple[float]:
            return (1.0 if trial.user_attrs.get(_INFEASIBLE) else 0.0,)

        if name == "tpe":
            return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, constraints_func=violation)
        if name == "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=20, constraints_func=violation)
        return samplers.RandomSampler(seed=seed)

    def _parameters(self, choice: Choice) -> dict[str, int]:
        return {axis.name: number for axis, number in zip(self._space.axes, choice, strict=True)}

    def _choice(self, parameters: dict[str, int]) -> Choice:
        return tuple(parameters[axis.name] for axis in self._space.axes)

    def _varied(self, choice: Choice) -> Choice | None:
        """A point not seen before, as near to ``choice`` as a few tries find one; None if there is none."""
        if len(self._seen) >= self._space.size:
            return None
        places = [place for place, axis in enumerate(self._space.axes) if len(axis.settings) > 1]
        for changed in range(1, len(places) + 1):
            for _ in range(_TRIES):
                varied = list(choice)
                for place in self._random.sample(places, changed):
                    varied[place] = self._random.randrange(len(self._space.axes[place].settings))
                if tuple(varied) not in self._seen:
                    return tuple(varied)
        if self._space.size > _ENUMERABLE:
            return None
        return next(point for point in self._space.points() if point not in self._seen)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        message = f"a guided search needs Optuna, which is not installed; get it with: {install_command('search')}"
        raise EnvironmentMissing(message) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

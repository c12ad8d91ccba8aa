"""Runs all threads of a block at once on values that are the same for every problem: threads, stages and parities of rings, addresses.

Threads that take the same way are one role, such as the producer, or the warps that multiply. Roles run until a branch depends on the
problem; all that wait for the same comparison decide it together, both ways are followed, and a state that was seen before ends a way.
A counter that grows beyond a few iterations gets a name, so that there are finitely many states, and every way of every problem is one of
those that were followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gemmgen.core.graphs import live_at_entry, reached
from gemmgen.emulator.ptx.syntax import (
    Address,
    Float,
    Function,
    Instruction,
    Integer,
    Operand,
    Register,
    Special,
    Symbol,
    registers_of,
    writers_of,
    written,
)
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.proof.control import LEAVES, ControlFlow, Unliftable, control_flow
from gemmgen.proof.forms import PURE, WITHOUT_EFFECT
from gemmgen.proof.parameters import whole_parameter
from gemmgen.proof.slicing import FLOATS, negated_register, uniform_floats
from gemmgen.proof.symbols import (
    Content,
    Expression,
    Results,
    compares_floats,
    computed,
    less,
    logic,
    negation_free,
    open_parts,
    replaced,
    signed,
    under,
    without_beginning,
)

SHARED_BASE = 1024
"""Address at which dynamic shared memory begins on sm_90: the system keeps the first 1024 bytes."""
FEW_ITERATIONS = 3
"""Iterations of a loop that are distinguished."""
MAX_STATES = 20_000
MAX_STEPS = 3_000_000
EVENTS = frozenset(
    (
        *("bar", "barrier", "mbarrier", "cp", "wgmma", "tcgen05", "fence", "st", "ld", "ldmatrix", "stmatrix", "red", "atom"),
        *("griddepcontrol", "setmaxnreg"),
    )
)
"""Opcodes that a monitor sees."""
COLLECTIVE = frozenset(("wgmma", "stmatrix", "ldmatrix", "bar", "barrier", "mma"))

MEETING = Expression("meeting")
"""Stands for the barrier that a role waits at until all threads of the block have come."""
RENEWED = Expression("renewed")
"""Stands for a sum until nothing has its new name any more."""

Environment = dict[str, Content]
Facts = dict[Expression, bool]


class Monitor(Protocol):
    """Follows one role's events. States are immutable and can be compared."""

    def start(self) -> object:
        """The state before the first event."""

    def event(self, state: object, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> object:
        """The state after an event of some threads of a role. Raises ``Unliftable``."""

    def plain(self, state: object, instruction: Instruction, certain: bool) -> object:
        """The state after a statement that only computes registers; ``certain`` if all threads of the role carry it out."""

    def finished(self, state: object, role: Role, facts: Facts) -> None:
        """Notes that the threads of a role have ended, after some decisions."""

    def idle(self, state: object) -> bool:
        """True for a role that has no part in the protocol."""

    def together(self, states: Sequence[object], complete: bool, facts: Facts) -> Sequence[object]:
        """The states of roles that decide together, after they have; ``facts`` are the decisions before."""

    def counted(self, state: object, number: int, name: Expression) -> object:
        """The state after a counter that is ``number`` now got a name."""

    def renamed(self, role: Role, old: Expression, name: Expression, grows: bool) -> object:
        """A role's state after a sum ``old`` got the name of a counter, which it had before if ``grows``."""


@dataclass(frozen=True)
class Role:
    """Threads that take the same way, and where they are."""

    threads: tuple[bool, ...]
    block: int
    place: int
    environment: tuple[tuple[str, Content], ...]
    monitor: object
    origins: tuple[tuple[Expression, str], ...] = ()
    """Registers that a comparison with the problem was made of a known number in."""
    waiting: Expression | None = None
    """The comparison that it needs in order to continue."""
    ended: bool = False
    whole: tuple[bool, ...] = ()
    """The threads of the role, where only some of them take a short way; empty if these are all."""

    @property
    def everyone(self) -> Role:
        """The role with those of its threads that wait for the others to come back."""
        return replace(self, threads=self.whole, whole=()) if self.whole else self


class Values:
    """Contents of operands in one environment."""

    def __init__(self, runner: Runner, environment: Mapping[str, Content], facts: Mapping[Expression, bool]) -> None:
        self._runner, self._environment, self.facts = runner, environment, facts

    def of(self, operand: Operand) -> Content | None:
        """The content of an operand, an address included; None if it is data."""
        match operand:
            case Integer(number):
                return number & ((1 << 64) - 1)
            case Register(name, _):
                return self._environment.get(name)
            case Special(name):
                return self._runner.special(name)
            case Symbol(name, offset):
                return self._runner.symbol(name, offset)
            case Address(base, offset, _):
                content = self.of(base)
                if isinstance(content, int):
                    return content + offset
                if isinstance(content, tuple):
                    return tuple(each + offset for each in content)
                return content if offset == 0 else None
        return None


class _Undecided(Exception):
    """A way depends on a comparison that was not decided."""

    def __init__(self, comparison: Expression) -> None:
        self.comparison = comparison


@dataclass
class Step:
    """One decision: the states before and after, and the counter that it shows to grow, if it does."""

    before: int
    after: int
    counter: Expression | None
    grows: bool
    """False where the counter got its name here."""
    comparison: Expression | None = None
    step: Content | None = None
    outcome: bool = False


class Runner:
    """All ways of the threads of one function. Raises ``Unliftable``."""

    def __init__(self, function: Function, threads: tuple[int, int, int], monitor: Monitor, check_time: Callable[[], None]) -> None:
        self._check_time = check_time
        self.function, self.shape, self.monitor = function, threads, monitor
        self.flow: ControlFlow = control_flow(function)
        self.count = threads[0] * threads[1] * threads[2]
        self.steps: list[Step] = []
        self.beginnings: set[tuple[Content, Content]] = set()
        """Beginnings, or steps, and limits of loops whose sum must not overflow, where the limit is at least 1."""
        self.states = 0
        self._work = 0
        self._uniform_floats = uniform_floats(function)
        self._live, self._relevant = _live_registers(function, self.flow)
        self._results: Results = {}
        self._computes = {
            id(instruction): any(register.name in self._relevant for register in written(instruction)) for instruction in function.body
        }
        x, y, _ = threads
        numbers = range(self.count)
        self._thread = {
            "x": tuple(number % x for number in numbers),
            "y": tuple(number // x % y for number in numbers),
            "z": tuple(number // (x * y) for number in numbers),
        }

    # -- values ------------------------------------------------------------------------------------------------

    def special(self, name: str) -> Content | None:
        """The content of a special register."""
        register, _, axis = name.lstrip("%").partition(".")
        if register in ("tid", "ntid") and axis not in self._thread:
            return None
        if register == "tid":
            values = self._thread[axis]
            return values if len(set(values)) > 1 else values[0]
        if register == "ntid":
            return self.shape["xyz".index(axis)]
        if register in ("ctaid", "nctaid"):
            return Expression(name)
        if register == "laneid" and self.shape[1:] == (1, 1):
            return tuple(number % WARP_THREADS for number in range(self.count))
        return None

    def symbol(self, name: str, offset: int) -> Content | None:
        """The address of a variable; shared memory has known addresses."""
        if any(variable.name == name and variable.scope for variable in self.function.variables):
            return None  # another one hides it in an inner scope
        return Expression("symbol", (Expression(name), offset)) if name != self.shared else SHARED_BASE + offset

    shared = ""
    """The array of dynamic shared memory."""

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Follows all ways."""
        everyone = (True,) * self.count
        first = Role(everyone, 0, 0, (), self.monitor.start())
        seen: dict[object, int] = {}
        pending: list[tuple[tuple[Role, ...], tuple[tuple[Expression, bool], ...]]] = []

        def add(roles: tuple[Role, ...], facts: Facts) -> int:
            roles, facts = self._rest(roles, facts)
            key = (roles, tuple(sorted(facts.items(), key=repr)))
            if key not in seen:
                seen[key] = len(seen)
                pending.append((roles, key[1]))
                if len(seen) > MAX_STATES:
                    raise Unliftable(None, f"more than {MAX_STATES} states")
            return seen[key]

        add((first,), {})
        while pending:
            self._check_time()
            roles, stored = pending.pop()
            facts = dict(stored)
            here = seen[roles, stored]
            comparison = _wanted(roles)
            if comparison is None and any(role.waiting is not None for role in roles):
                raise Unliftable(None, "a barrier of the whole block that some threads do not come to")
            if comparison is None:
                self._agreed(roles, range(len(roles)), facts)
                continue
            for outcome in self._outcomes(comparison):
                here_after, facts_after, step = self._decided(roles, facts, comparison, outcome)
                after = add(here_after, facts_after)
                self.steps.append(replace(step, before=here, after=after))
        self.states = len(seen)

    def _outcomes(self, comparison: Expression) -> tuple[bool, ...]:
        """The outcomes that a comparison may have."""
        return True, False

    def _decided(
        self, roles: tuple[Role, ...], facts: Facts, comparison: Expression, outcome: bool
    ) -> tuple[tuple[Role, ...], Facts, Step]:
        """The roles after a comparison that some of them wait for."""
        together = [place for place, role in enumerate(roles) if role.waiting == comparison]
        states = self._agreed(roles, together, facts)
        changed = list(roles)
        for place, state in zip(together, states, strict=True):
            changed[place] = replace(changed[place], monitor=state)
        known = {comparison: outcome}
        for place, role in enumerate(changed):
            environment = {name: value for name, content in role.environment if (value := under(content, known)) is not None}
            changed[place] = replace(role, environment=_stored(environment), waiting=None)
        renamed, facts, counter, grows, step = self._named(tuple(changed), {**facts, comparison: outcome}, comparison, together)
        return renamed, facts, Step(0, 0, counter, grows, comparison, step, outcome)

    def _agreed(self, roles: tuple[Role, ...], together: Sequence[int], facts: Facts) -> Sequence[object]:
        """The states of roles that decide together."""
        rest = [role for place, role in enumerate(roles) if place not in together]
        complete = all((role.ended or role.waiting == MEETING) and self.monitor.idle(role.monitor) for role in rest)
        return self.monitor.together([roles[place].monitor for place in together], complete, facts)

    def _named(
        self, roles: tuple[Role, ...], facts: Facts, comparison: Expression, together: Sequence[int]
    ) -> tuple[tuple[Role, ...], Facts, Expression | None, bool, Content | None]:
        """Gives a counter beyond its first iterations a name, the same in all roles that decide together."""
        if not comparison.operation.startswith(("lt.", "lo.", "eq.")):
            return roles, facts, None, False, None
        counter, limit = comparison.arguments
        if isinstance(counter, Expression) and counter.operation.startswith("add.") and len(counter.arguments) == 2:
            base, step = counter.arguments
            if not isinstance(base, Expression) and isinstance(step, Expression):
                base, step = step, base
            if not isinstance(base, Expression):
                return roles, facts, None, False, None
            grows = base.operation == "counter"
            name = base if grows else Expression("counter", (base, step, limit))
            forward = comparison.operation == "lt.s32" and isinstance(step, int) and 0 < step < 1 << 16 and base.arguments[1:] == (limit,)
            if grows and base.low and not (facts[comparison] and forward):  # it may overflow from here on, or fall
                name, grows = Expression("counter", (0, limit)), False
            elif grows and base.low and step != 1:  # below its limit, a larger step may lead beyond all numbers
                self.beginnings.add((step, limit))
            return self._renamed(roles, counter, name, grows), self._about(facts, counter, name), name, grows, step
        if isinstance(counter, int) and signed(counter, 64 if comparison.operation.endswith("64") else 32) > FEW_ITERATIONS:
            low = FEW_ITERATIONS if facts[comparison] and comparison.operation == "lt.s32" else 0
            name = Expression("counter", (low, limit), low)
            changed = []
            for place, each in enumerate(roles):
                role = replace(each, monitor=self.monitor.counted(each.monitor, counter, name))
                register = dict(role.origins).get(comparison)
                held = None if register is None else dict(role.environment).get(register)
                begins = isinstance(held, Expression) and held.operation.startswith("add.") and held.arguments[1:] == (counter,)
                if place not in together or register is None or (held != counter and not begins):
                    changed.append(self._forget(role, name))
                    continue
                environment = dict(self._forget(role, name).environment)
                environment[register] = Expression(held.operation, (held.arguments[0], name)) if isinstance(held, Expression) else name
                changed.append(replace(self._forget(role, name), environment=_stored(environment)))
            other_facts = {fact: outcome for fact, outcome in facts.items() if not fact.mentions(name) and not _same_counter(fact, limit)}
            other_facts[Expression(comparison.operation, (name, limit))] = facts[comparison]
            return tuple(changed), other_facts, name, False, 1
        return roles, facts, None, False, None

    def _renamed(self, roles: tuple[Role, ...], old: Expression, name: Expression, grows: bool) -> tuple[Role, ...]:
        """A sum gets the name of a counter; the earlier value of this name is unknown from now on."""
        changed = []
        for role in roles:
            environment: Environment = {}
            for register, content in role.environment:
                value = renamed(content, old, name)
                if value is not None:
                    environment[register] = value
            state = self.monitor.renamed(role, old, name, grows)
            changed.append(replace(role, environment=_stored(environment), monitor=state, origins=()))
        return tuple(changed)

    def _about(self, facts: Facts, old: Expression, name: Expression) -> Facts:
        renewed_facts: Facts = {}
        for fact, outcome in facts.items():
            renewed = renamed(fact, old, name)
            if isinstance(renewed, Expression):
                renewed_facts[renewed] = outcome
        return renewed_facts

    def _forget(self, role: Role, name: Expression) -> Role:
        environment = {register: value for register, content in role.environment if (value := replaced(content, name, None)) is not None}
        return replace(role, environment=_stored(environment), origins=())

    def _predicate(self, instruction: Instruction, environment: Mapping[str, Content], facts: Facts) -> Content | None:
        assert instruction.guard is not None
        value = under(environment.get(instruction.guard.name), facts)
        if isinstance(value, Expression) and any(compares_floats(part) for part in open_parts(value)):
            return None
        return logic("not", (value,)) if instruction.guard_negated and value is not None else value

    def _rest(self, roles: tuple[Role, ...], facts: Facts) -> tuple[tuple[Role, ...], Facts]:
        """All roles where they end or need a decision, and the facts that still matter."""
        settled: list[Role] = []
        pending = list(reversed(roles))
        while pending:
            role = pending.pop()
            if role.ended or role.waiting == MEETING:
                settled.append(role)
                continue
            left = self._walk(role, facts, self.flow.end)
            if len(left) == 1:
                settled.append(left[0])
            else:
                pending += reversed(left)
        if all(role.waiting == MEETING for role in settled):
            met = self._met(tuple(settled), facts)
            if met is not None:
                return self._rest(met, facts)
        return tuple(settled), facts

    def _meets_again(self, role: Role, instruction: Instruction) -> bool:
        """True for a barrier at which roles become one again."""
        return False

    def _met(self, roles: tuple[Role, ...], facts: Facts) -> tuple[Role, ...] | None:
        """Roles behind such a barrier that all came to; None if some have not."""
        return None

    in_cluster = False
    """True where statements on the memory of other blocks of a cluster are followed."""

    def _result_of(self, instruction: Instruction, contents: tuple[Content | None, ...]) -> Content | None:
        """The result of a statement from its operands."""
        return computed(instruction, contents, self._results)

    def _passed(self, here: Role, instruction: Instruction) -> Role | None:
        """The role behind statements that depend on a comparison which need not be decided; None if it must be."""
        return None

    def _loaded(self, instruction: Instruction, values: Values) -> Content | None:
        """The content that a load gives; None for data."""
        return None

    def _walk(self, role: Role, facts: Facts, stop: int, inner: bool = False) -> list[Role]:
        """Runs a role to ``stop``, to its end or to a decision; several roles where its threads part."""
        environment, state, origins = dict(role.environment), role.monitor, dict(role.origins)
        block, place = role.block, role.place
        while True:
            if block == stop and (inner or block == self.flow.end):
                ended = block == self.flow.end and not inner
                if ended:
                    self.monitor.finished(state, role, facts)
                    environment = {}
                live_environment = environment if inner else self._only_live(environment, block)
                return [
                    Role(role.threads, block, 0, _stored(live_environment), state, () if ended else tuple(origins.items()), None, ended)
                ]
            statements = self.flow.blocks[block]
            if place == 0 and not inner:
                environment = self._only_live(environment, block)
            following = self.flow.successors[block][0]
            while place < len(statements):
                self._work += 1
                if self._work > MAX_STEPS:
                    raise Unliftable(None, f"more than {MAX_STEPS} steps")
                instruction = statements[place]
                threads = role.threads
                guard: Content | None = 1
                if instruction.guard is not None:
                    guard = self._predicate(instruction, environment, facts)
                if instruction.opcode == "bra" or instruction.opcode in LEAVES:
                    following, parted = self._branch(
                        role, block, place, instruction, guard, environment, state, origins, facts, stop, inner
                    )
                    if parted is not None:
                        only = parted[0]
                        if len(parted) == 1 and only.waiting is None:
                            environment, state, origins = dict(only.environment), only.monitor, dict(only.origins)
                            following = only.block
                            break
                        return parted
                    break
                if guard == 1 and self._meets_again(role, instruction) and not inner:
                    return [Role(role.threads, block, place, _stored(environment), state, (), MEETING)]
                if "sync" in instruction.modifiers and (guard is None or not whole_warps(role.threads)):
                    raise Unliftable(instruction, "only a part of a warp may come here")
                if isinstance(guard, Expression):
                    if instruction.opcode in EVENTS:
                        if inner:
                            raise _Undecided(open_parts(guard)[0])
                        waiting = open_parts(guard)[0]
                        return [Role(role.threads, block, place, _stored(environment), state, tuple(origins.items()), waiting)]
                    self._assign(instruction, None, environment)
                    state = self.monitor.plain(state, instruction, False)
                    place += 1
                    continue
                if guard is None and instruction.opcode in EVENTS and not only_global(instruction):
                    raise Unliftable(instruction, "threads may differ in whether they do this")
                if isinstance(guard, tuple):
                    guard = _shared_by(guard, role.threads)
                if isinstance(guard, tuple):
                    threads = tuple(mine and bool(holds) for mine, holds in zip(threads, guard, strict=True))
                    if "sync" in instruction.modifiers and not whole_warps(threads):
                        raise Unliftable(instruction, "only a part of a warp comes here")
                elif guard == 0:
                    threads = (False,) * self.count
                if instruction.opcode not in EVENTS and self._only_data(instruction):
                    state = self.monitor.plain(state, instruction, guard == 1 and not role.whole)
                elif any(threads):
                    state = self._execute(role, (block, place), instruction, threads, guard, environment, state, origins, facts)
                place += 1
            else:
                following = self.flow.successors[block][0]
            block, place = following, 0

    def _only_data(self, instruction: Instruction) -> bool:
        """True for a statement that computes nothing but data."""
        return instruction.opcode not in COLLECTIVE and not self._computes[id(instruction)]

    def _only_live(self, environment: Environment, block: int) -> Environment:
        live = self._live[block]
        return {name: value for name, value in environment.items() if name in live}

    def _execute(
        self,
        role: Role,
        at: tuple[int, int],
        instruction: Instruction,
        threads: tuple[bool, ...],
        guard: Content | None,
        environment: Environment,
        state: object,
        origins: dict[Expression, str],
        facts: Facts,
    ) -> object:
        opcode, values = instruction.opcode, Values(self, environment, facts)
        of_cluster = any("cluster" in word for word in instruction.modifiers)
        if of_cluster and not self.in_cluster and opcode in ("bar", "barrier", "st", "ld", "red", "atom"):
            raise Unliftable(instruction, "clusters of blocks are not modelled")
        free = opcode == "barrier" and instruction.has("cluster") and not instruction.has("aligned")
        collective = opcode in COLLECTIVE or "aligned" in instruction.modifiers
        some = threads != role.everyone.threads and opcode != "tcgen05"
        if collective and (some or not (free or whole_warps(threads))):
            raise Unliftable(instruction, "only a part of a warp comes here")
        if opcode in EVENTS:
            if opcode == "mbarrier" and instruction.modifiers[0] in ("try_wait", "test_wait"):
                self._spins(at, instruction, environment)
            state = self.monitor.event(state, role.everyone, instruction, threads, values)
            if opcode == "mbarrier" and instruction.modifiers[0] in ("try_wait", "test_wait"):
                (target,) = written(instruction)
                environment[target.name] = 1
            elif opcode == "ld" and instruction.has("param") and guard == 1:
                self._parameter(instruction, environment)
            elif opcode in ("ld", "atom", "ldmatrix", "tcgen05"):
                self._assign(instruction, self._loaded(instruction, values) if guard == 1 else None, environment)
            return state
        state = self.monitor.plain(state, instruction, guard == 1 and not role.whole)
        if opcode in WITHOUT_EFFECT or not self._computes[id(instruction)]:
            return state
        result: Content | None = None
        if opcode == "shfl":
            result = self._shuffled(role, instruction, threads, values)
        elif len(written(instruction)) == 1 and written(instruction)[0].type not in FLOATS:
            operands = instruction.operands[1:]
            if opcode == "setp" and instruction.type in FLOATS:
                contents = tuple(map(self._uniform_float, operands))
            else:
                contents = tuple(self._operand(operand, values) for operand in operands)
            result = self._result_of(instruction, contents)
            if opcode == "setp" and isinstance(result, Expression) and isinstance(operands[0], Register):
                plain, negated = negation_free(result)
                iteration = self._iteration_of(plain, facts)
                if iteration is not None:
                    usual, flipped = less(*iteration)
                    assert isinstance(usual, Expression)
                    result = logic("not", (usual,)) if negated != flipped else usual
                    origins[usual] = operands[0].name
                elif (counted := _reaches(plain, facts)) is not None:
                    usual, flipped = less(*counted)
                    assert isinstance(usual, Expression)
                    result = usual if negated != flipped else logic("not", (usual,))
                    for operand, content in zip(operands, contents, strict=True):
                        if isinstance(operand, Register) and content == counted[0]:
                            origins[usual] = operand.name
                elif plain.arguments and isinstance(plain.arguments[0], int):
                    for operand, content in zip(operands, contents, strict=False):
                        if isinstance(operand, Register) and content == plain.arguments[0]:
                            origins[plain] = operand.name
        if guard == 1:
            self._assign(instruction, result, environment)
        else:
            self._blend(instruction, result, guard, environment)
        return state

    def _iteration_of(self, comparison: Expression, facts: Facts) -> tuple[Content, Content] | None:
        """The iteration and the limit that a comparison of two sums with one beginning compares, if proved not to overflow.

        The limit is at least 1. The iteration is a small number, or follows one that is below the limit.
        """
        parts = without_beginning(comparison)
        if parts is None:
            return None
        beginning, iteration, limit = parts
        if facts.get(Expression("lt.s32", (limit, 1))) is not False:
            return None
        if isinstance(iteration, Expression):
            counter = iteration.arguments[0] if iteration.operation == "add.s32" and iteration.arguments[1:] == (1,) else None
            if not isinstance(counter, Expression) or not counter.low or counter.arguments[1:] != (limit,):
                return None
        elif not isinstance(iteration, int) or iteration > FEW_ITERATIONS + 1:
            return None
        self.beginnings.add((beginning, limit))
        return iteration, limit

    def _operand(self, operand: Operand, values: Values) -> Content | None:
        register, is_negated = negated_register(operand)
        if register is not None and is_negated:
            content = values.of(register)
            return None if content is None else logic("not", (content,))
        if isinstance(operand, Float):
            return None
        return values.of(operand)

    def _uniform_float(self, operand: Operand) -> Content | None:
        """The name of a float that all threads of the launch agree on, such as alpha; None for others."""
        if isinstance(operand, Float):
            return Expression(repr(operand))
        name = self._uniform_floats.get(operand.name) if isinstance(operand, Register) else None
        return None if name is None else Expression(name)

    def _assign(self, instruction: Instruction, result: Content | None, environment: Environment) -> None:
        targets = written(instruction)
        for register in targets:
            environment.pop(register.name, None)
        if result is not None and targets:
            if isinstance(result, tuple) and len(set(result)) == 1:
                result = result[0]
            environment[targets[0].name] = result

    def _blend(self, instruction: Instruction, result: Content | None, guard: Content | None, environment: Environment) -> None:
        for register in written(instruction):
            old = environment.pop(register.name, None)
            numbers = (guard, result, old)
            if len(written(instruction)) == 1 and all(isinstance(value, int | tuple) for value in numbers):
                columns = [value if isinstance(value, tuple) else (value,) * self.count for value in numbers]
                environment[register.name] = tuple(yes if holds else no for holds, yes, no in zip(*columns, strict=True))

    def _parameter(self, instruction: Instruction, environment: Environment) -> None:
        target, source = instruction.operands
        for register in written(instruction):
            environment.pop(register.name, None)
        if not isinstance(target, Register) or target.type in FLOATS:
            return
        number = whole_parameter(self.function, instruction)
        if number is not None:
            environment[target.name] = Expression("param", (number,))
        elif isinstance(source, Address) and isinstance(source.base, Symbol):
            part = Expression(source.base.name), source.base.offset + source.offset
            environment[target.name] = Expression(f"part.{instruction.type}.{target.type}", part)

    def _shuffled(self, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> Content | None:
        """``shfl.idx`` of whole warps from one lane, of a number that is known."""
        _, source, lane, clamp, mask = instruction.operands
        numbers, which, limit, members = (values.of(operand) for operand in (source, lane, clamp, mask))
        full = isinstance(members, int) and members & 0xFFFFFFFF == 0xFFFFFFFF
        if not instruction.has("idx") or not full or limit != 31 or not isinstance(which, int) or not whole_warps(threads):
            return None
        if isinstance(numbers, int):
            return numbers
        if not isinstance(numbers, tuple):
            return None
        first = which % WARP_THREADS
        return tuple(numbers[number // WARP_THREADS * WARP_THREADS + first] for number in range(self.count))

    def _spins(self, at: tuple[int, int], instruction: Instruction, environment: Environment) -> None:
        """A wait whose failure leads back to itself, and changes nothing."""
        block, place = at
        statements = self.flow.blocks[block]
        trial = dict(environment)
        live = self._live[block]
        for before in statements[:place]:
            if before.opcode in EVENTS:
                raise Unliftable(instruction, "a wait after other statements that would be repeated")
        for register in written(instruction):
            trial[register.name] = 0
        for other in statements[place + 1 :]:
            if other.opcode == "bra":
                guard = self._predicate(other, trial, {}) if other.guard is not None else 1
                target = self.flow.successors[block][0 if guard == 1 else 1] if isinstance(guard, int) else -1
                written_here = {register.name for each in statements for register in written(each)}
                if target != block or any(name in live for name in written_here):
                    raise Unliftable(instruction, "a wait that is not repeated until it succeeds")
                return
            if other.opcode in EVENTS:
                break
            contents = tuple(self._operand(operand, Values(self, trial, {})) for operand in other.operands[1:])
            self._assign(other, computed(other, contents, self._results) if other.guard is None else None, trial)
        raise Unliftable(instruction, "a wait that is not repeated until it succeeds")

    # -- branches ----------------------------------------------------------------------------------------------

    def _branch(
        self,
        role: Role,
        block: int,
        place: int,
        instruction: Instruction,
        guard: Content | None,
        environment: Environment,
        state: object,
        origins: dict[Expression, str],
        facts: Facts,
        stop: int,
        inner: bool,
    ) -> tuple[int, list[Role] | None]:
        successors = self.flow.successors[block]
        if isinstance(guard, int):
            return successors[0 if guard else -1], None
        here = Role(role.threads, block, place, _stored(environment), state, tuple(origins.items()), None, False, role.whole)
        if isinstance(guard, Expression) and (passed := self._passed(here, instruction)) is not None:
            return -1, [passed]
        if isinstance(guard, Expression):
            if inner:
                raise _Undecided(open_parts(guard)[0])
            comparison = open_parts(guard)[0]
            return -1, [self._pruned(here, comparison)]
        if isinstance(guard, tuple):
            yes = tuple(mine and bool(holds) for mine, holds in zip(role.threads, guard, strict=True))
            no = tuple(mine and not holds for mine, holds in zip(role.threads, guard, strict=True))
            if not any(no):
                return successors[0], None
            if not any(yes):
                return successors[1], None
            joined = self._joined(here, yes, no, facts)
            if joined is not None:
                return -1, [joined]
            if inner:
                raise Unliftable(instruction, "threads that part, and do not meet again")
            return -1, [replace(here, threads=mine, block=target, place=0) for mine, target in ((yes, successors[0]), (no, successors[1]))]
        return -1, [self._either_way(here, instruction)]

    def _pruned(self, here: Role, comparison: Expression) -> Role:
        """A role that waits at the end of its basic block, with the state that matters afterwards."""
        live = frozenset[str]().union(*[self._live[other] for other in self.flow.successors[here.block]])
        guard = self.flow.blocks[here.block][here.place].guard
        live_environment = tuple(
            (name, value) for name, value in here.environment if name in live or (guard is not None and name == guard.name)
        )
        origins = tuple(item for item in here.origins if item[0] == comparison)
        return replace(here, environment=live_environment, origins=origins, waiting=comparison)

    def _region(self, block: int) -> tuple[int, frozenset[int]] | None:
        """The block where the ways from a block meet, and the basic blocks in between; None if they form a loop or only end together."""
        meeting = self.flow.meeting(block)
        if meeting == self.flow.end:
            return None
        inside = frozenset(self.flow.between(block, meeting))
        return None if block in inside or not inside.isdisjoint(self.flow.loops) else (meeting, inside)

    def _joined(self, here: Role, yes: tuple[bool, ...], no: tuple[bool, ...], facts: Facts) -> Role | None:
        """The role where both parts of it meet again, after one and then the other has gone its way; None if they part for good."""
        region = self._region(here.block)
        if region is None:
            return None
        meeting, _ = region
        successors = self.flow.successors[here.block]
        state, environments = here.monitor, []
        try:
            for threads, target in ((yes, successors[0]), (no, successors[1])):
                if target == meeting:
                    environments.append(dict(here.environment))
                    continue
                part = replace(here, threads=threads, block=target, place=0, monitor=state, whole=here.everyone.threads)
                (left,) = self._walk(part, facts, meeting, inner=True)
                state = left.monitor
                environments.append(dict(left.environment))
        except _Undecided as undecided:
            return self._pruned(here, undecided.comparison)
        merged: Environment = {}
        for name, value in environments[0].items():
            other = environments[1].get(name)
            if other == value:
                merged[name] = value
            elif isinstance(value, int | tuple) and isinstance(other, int | tuple):
                columns = [each if isinstance(each, tuple) else (each,) * self.count for each in (value, other)]
                merged[name] = tuple(a if takes else b for takes, a, b in zip(yes, *columns, strict=True))
        return replace(here, block=meeting, place=0, environment=_stored(merged), monitor=state)

    def _either_way(self, here: Role, instruction: Instruction) -> Role:
        """The role behind statements that some of its threads carry out, nobody knows which: they only compute, and use global memory."""
        region = self._region(here.block)
        if region is None:
            raise Unliftable(instruction, "data decides where threads go")
        meeting, inside = region
        environment, state = dict(here.environment), here.monitor
        alone = dict(environment) if self.in_cluster and len(inside) == 1 else {}
        for block in inside:
            for statement in self.flow.blocks[block]:
                if alone and statement.opcode == "ld" and statement.guard is None and not only_global(statement):
                    # As if all threads loaded: then no fewer accesses meet, and no fewer bytes are needed.
                    state = self.monitor.event(state, here.everyone, statement, here.threads, Values(self, alone, {}))
                    self._assign(statement, None, alone)
                    for register in written(statement):
                        environment.pop(register.name, None)
                    continue
                if "sync" in statement.modifiers:
                    raise Unliftable(statement, "data decides which threads do this")
                if alone and statement.opcode in PURE:
                    values = Values(self, alone, {})
                    contents = tuple(self._operand(operand, values) for operand in statement.operands[1:])
                    known = statement.guard is None and len(written(statement)) == 1 and written(statement)[0].type not in FLOATS
                    self._assign(statement, self._result_of(statement, contents) if known else None, alone)
                if (
                    (statement.opcode in EVENTS and not only_global(statement))
                    or statement.opcode in COLLECTIVE
                    or statement.opcode in LEAVES
                ):
                    raise Unliftable(statement, "data decides which threads do this")
                if statement.opcode in EVENTS:
                    state = self.monitor.event(state, here.everyone, statement, here.threads, Values(self, {}, {}))
                state = self.monitor.plain(state, statement, False)
                for register in written(statement):
                    environment.pop(register.name, None)
        return replace(here, block=meeting, place=0, environment=_stored(environment), monitor=state)


def renamed(content: Content | None, old: Expression, name: Expression) -> Content | None:
    """A content with a sum under its new name; None if it depends on the earlier value of this name."""
    renewed = replaced(content, old, RENEWED)
    return replaced(replaced(renewed, name, None), RENEWED, name)


def _reaches(comparison: Expression, facts: Facts) -> tuple[Content, Content] | None:
    """Both sides of ``iteration == limit`` where iteration - 1 is below the limit, which makes it ``not iteration < limit``."""
    if comparison.operation != "eq.s32":
        return None
    for iteration, limit in (comparison.arguments, comparison.arguments[::-1]):
        before: Content | None = None
        if iteration == 1:
            parts = limit.arguments if isinstance(limit, Expression) and limit.operation == "max.s32" else ()
            if any(isinstance(part, int) and 1 <= part < 1 << 31 for part in parts):
                return iteration, limit
        elif isinstance(iteration, int) and 1 < iteration < 1 << 16:
            before = iteration - 1
        elif isinstance(iteration, Expression) and iteration.operation == "add.s32" and iteration.arguments[1:] == (1,):
            before = iteration.arguments[0]
        if before is not None and isinstance(limit, Expression):
            usual, flipped = less(before, limit)
            if isinstance(usual, Expression) and facts.get(usual) is (not flipped):
                return iteration, limit
    return None


def _same_counter(fact: Expression, limit: Content) -> bool:
    return (
        fact.operation.startswith("lt.") and len(fact.arguments) == 2 and fact.arguments[1] == limit and isinstance(fact.arguments[0], int)
    )


def only_global(instruction: Instruction) -> bool:
    """True for a load or a store that is not one of shared memory."""
    return instruction.opcode in ("ld", "st") and (instruction.has("global") or instruction.has("param") or instruction.has("const"))


def _stored(environment: Mapping[str, Content]) -> tuple[tuple[str, Content], ...]:
    return tuple(sorted(environment.items()))


def _shared_by(guard: tuple[int, ...], threads: tuple[bool, ...]) -> Content:
    """A predicate of some threads: one number where they agree."""
    contents = {holds for holds, mine in zip(guard, threads, strict=True) if mine}
    return contents.pop() if len(contents) == 1 else guard


def _wanted(roles: Sequence[Role]) -> Expression | None:
    """The comparison that most roles wait for; None if all have ended."""
    wanted: dict[Expression, int] = defaultdict(int)
    for role in roles:
        if role.waiting not in (None, MEETING):
            wanted[role.waiting] += 1
    return max(wanted, key=lambda part: wanted[part]) if wanted else None


def whole_warps(threads: tuple[bool, ...]) -> bool:
    """True if all threads of a warp belong to a role, or none does."""
    return all(len(set(threads[first : first + WARP_THREADS])) == 1 for first in range(0, len(threads), WARP_THREADS))


def _roots(instruction: Instruction) -> Iterator[Register]:
    """Registers that a statement's effects depend on."""
    if instruction.guard is not None:
        yield instruction.guard
    for operand in instruction.operands:
        if isinstance(operand, Address):
            yield from registers_of(operand)
    if instruction.opcode in ("cp", "mbarrier", "bar", "barrier"):
        for operand in instruction.operands[1:] if instruction.opcode == "mbarrier" else instruction.operands:
            yield from registers_of(operand)
    if instruction.opcode == "tcgen05" and instruction.modifiers[0] != "ld":
        for operand in instruction.operands:
            yield from registers_of(operand)
    if instruction.opcode == "wgmma":
        for operand in instruction.operands[1:]:
            yield from (register for register in registers_of(operand) if register.type in ("b64", "pred"))


def _live_registers(function: Function, flow: ControlFlow) -> tuple[list[frozenset[str]], frozenset[str]]:
    """Registers by basic block whose contents at its start matter: addresses, guards and the registers that these are computed
    from; and all of those."""
    writers = writers_of(function.body)

    def sources_of_register(name: str) -> Iterator[str]:
        for instruction in writers.get(name, ()):
            if instruction.opcode not in ("ld", "atom", "ldmatrix", "tcgen05"):
                yield from (each.name for operand in instruction.operands[1:] for each in registers_of(operand) if each.type not in FLOATS)
            if instruction.guard is not None:
                yield instruction.guard.name

    roots = (register.name for instruction in function.body for register in _roots(instruction))
    relevant = frozenset(reached(roots, sources_of_register))
    reads: list[set[str]] = []
    kills: list[set[str]] = []
    for statements in (*flow.blocks, ()):
        read, killed = set[str](), set[str]()
        for instruction in statements:
            targets = {register.name for register in written(instruction)}
            used = {register.name for register in _roots(instruction)}
            if targets & relevant or not targets:
                sources = instruction.operands[1:] if targets else instruction.operands
                used |= {each.name for operand in sources for each in registers_of(operand)}
            if instruction.guard is not None:
                used |= targets
            read |= (used & relevant) - killed
            if instruction.guard is None:
                killed |= targets
        reads.append(read)
        kills.append(killed)
    return live_at_entry(flow.successors, reads, kills), relevant

"""Looking at all surroundings: what is slow is asked side by side, by one deadline; what has not come by then is unknown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tpuctl import gcloud
from tpuctl.actions.checking.asking import Asking
from tpuctl.actions.checking.questions import Questions
from tpuctl.actions.checkup import identity, keys, machine, network
from tpuctl.actions.checkup.files import entry
from tpuctl.checkup.surroundings.facts import Cloud, Configuration, Surroundings, Token
from tpuctl.checkup.surroundings.project import NEEDED
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.model import NodeSpec
from tpuctl.preflight.fact import Fact, Known, Unknown, known
from tpuctl.preflight.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tpuctl.actions.checking.asking import Question
    from tpuctl.actions.checkup.ways import Ways
    from tpuctl.checkup.surroundings.facts import Answer, Identity, Network, NoToken

T = TypeVar("T")

# Variables that programs of the cloud read. Of others than the second the value is not kept: it may be secret.
_READ = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "TPU_", "GCE_METADATA_", "NO_GCE_CHECK", "SSH_AUTH_SOCK")
_PLAIN = ("TPU_", "CLOUDSDK_API_ENDPOINT_OVERRIDES_", "CLOUDSDK_ACTIVE_CONFIG_NAME")


class Looking:
    """Looks at everything once. What takes time is begun before anything is waited for."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._asking = Asking(ways.clock, ways.timeout)

    def look(self, now: datetime) -> Surroundings:
        """Return everything. Raises nothing for what cannot be had: that is a fact, with its reason."""
        ways = self._ways
        token = self._token()
        hosts = self._hosts()
        programs = {name: self._put(("program", name), machine.find, name, ways.environ) for name in machine.PROGRAMS}
        private = keys.private_path(ways)
        derived = (
            self._asking.ask("key", partial(keys.derive, private, ways.environ)) if entry(private).is_there else None
        )
        agent = None if ways.is_sandbox else self._put("agent", keys.ask_agent, ways.environ)
        half = self._asking.answer(derived) if derived else None
        whose = identity.look(ways, known(ways.settings), self._whose(token))
        way = network.look(
            ways, {name: (self._of(put) if put else None, self._of(asked)) for name, (put, asked) in hosts.items()}
        )
        return Surroundings(
            now=now,
            machine=machine.look(ways, {name: self._of(question) for name, question in programs.items()}),
            keys=keys.look(ways, _derived(half), self._of(agent) if agent else None),
            identity=whose,
            network=way,
            configuration=_configuration(ways),
            cloud=replace(self._cloud(now, whose, way), node=ways.node),
        )

    def _hosts(self) -> dict[str, tuple[Question[Fact[tuple[str, ...]]] | None, Question[Fact[Answer]]]]:
        """Ask for the names and the answers of the hosts of the cloud that was chosen; without a cloud nothing is asked."""
        ways, cloud = self._ways, self._ways.cloud
        if cloud is None or isinstance(ways.proxy, Unknown):  # no request could be sent
            return {}
        return {
            name: (
                self._put(("name", name), network.resolve, name) if network.looks_up(ways, name) else None,
                self._put(("host", name), network.ask, cloud, ways.clock, name),
            )
            for name in cloud.origins
        }

    def _token(self) -> Question[Token | NoToken] | None:
        ways = self._ways
        tokens = ways.cloud.tokens if ways.cloud else None
        if tokens is None or isinstance(ways.proxy, Unknown):
            return None
        # A file that cannot be read gives no token, and google-auth would say so less well.
        if isinstance(identity.read_file(ways), Unknown):
            return None
        return self._asking.ask("token", partial(identity.fetch, tokens))

    def _whose(self, token: Question[Token | NoToken] | None) -> Fact[Token | NoToken] | None:
        if token is not None:
            return self._asking.answer(token)
        return (
            None if self._ways.is_local else Unknown("the settings or the proxy are broken, so that nobody was asked")
        )

    def _cloud(self, now: datetime, whose: Identity, way: Network) -> Cloud:
        """Ask about the project, where it is known who asks, and that anybody answers."""
        ways = self._ways
        if (why := _obstacle(ways, whose, way)) is not None:
            return Cloud(project=ways.project, unasked=why)
        if not isinstance(ways.project, Known):
            return Cloud(project=ways.project)
        name = ways.project.value
        try:
            sources = ways.sources()
        except TpuctlError as error:
            return Cloud(project=ways.project, unasked=error.message)
        wanted = ways.wishes.wanted(name, ways.zone, NodeSpec(accelerator_type="", runtime_version=""), creates=False)
        questions = Questions(sources, self._asking, wanted)
        asked = questions.project(), questions.services(), questions.billing()
        allowed = self._asking.ask("permissions", lambda: sources.projects.test_permissions(name, NEEDED))
        try:
            project, services, billing = (self._asking.answer(question) for question in asked)
            permissions = self._asking.answer(allowed)
        except CredentialsError as error:
            return Cloud(project=ways.project, unasked=error.message)
        facts = Facts(now=now, wanted=wanted, project=project, services=services, billing=billing)
        return Cloud(project=ways.project, facts=facts, wanted_permissions=tuple(NEEDED), permissions=permissions)

    def _put(self, key: object, call: Callable[..., Fact[T]], *about: object) -> Question[Fact[T]]:
        """Ask what gives a fact itself."""
        return self._asking.ask(key, partial(call, *about))

    def _of(self, question: Question[Fact[T]]) -> Fact[T]:
        """Return the fact that was given, or that none came in time."""
        answer = self._asking.answer(question)
        return answer.value if isinstance(answer, Known) else answer


def _derived(half: Fact[keys.Derived] | None) -> keys.Derived | None:
    if half is None:
        return None
    return half.value if isinstance(half, Known) else keys.Derived(half)


def _obstacle(ways: Ways, whose: Identity, way: Network) -> str | None:
    """Return why nobody can be asked about the project."""
    if not isinstance(ways.settings, Known):
        return "the settings cannot be read"
    if ways.closed is not None:
        return "the sandbox cannot be opened"
    if not any(isinstance(host.answer, Known) for host in way.hosts):
        return "the cloud was not reached"
    if whose.needed and not isinstance(known(whose.token), Token):
        return "without credentials nobody may ask"
    return None


def _configuration(ways: Ways) -> Configuration:
    paths = (*((ways.project_file,) if ways.project_file else ()), ways.user_file)
    file = gcloud.configuration_file(ways.environ)
    seen = {name: text if name.startswith(_PLAIN) else "" for name, text in sorted(ways.environ.items()) if text}
    endpoint = known(ways.endpoint)
    return Configuration(
        settings=ways.settings,
        problems=ways.problems,
        files=ways.files,
        entries=tuple(map(entry, paths)),
        gcloud_name=gcloud.configuration_name(ways.environ),
        gcloud_entry=entry(file) if file else None,
        variables={name: text for name, text in seen.items() if name.startswith(_READ)},
        is_sandbox=ways.is_sandbox,
        endpoint=endpoint.url() if endpoint else None,
    )

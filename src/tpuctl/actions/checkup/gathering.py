"""Gather all facts about this machine and its access to the cloud.

Slow probes run in parallel, with one deadline; a probe without a result by then is unknown.
"""

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

# Variables that tpuctl, gcloud and Google's libraries read. Only the values of the second group are kept: others may be secret.
_READ = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "TPU_", "GCE_METADATA_", "NO_GCE_CHECK", "SSH_AUTH_SOCK")
_PLAIN = ("TPU_", "CLOUDSDK_API_ENDPOINT_OVERRIDES_", "CLOUDSDK_ACTIVE_CONFIG_NAME")


class Looking:
    """Runs all probes once. Slow ones are started before the first one is waited for."""

    def __init__(self, context: Ways) -> None:
        self._context = context
        self._asking = Asking(context.clock, context.timeout)

    def gather(self, now: datetime) -> Surroundings:
        """Return all facts. A probe that fails raises nothing: it yields an Unknown with its reason."""
        context, derived = self._context, None
        token = self._ask_for_token()
        hosts = self._ask_hosts()
        programs = {
            name: self._put(("program", name), machine.find, name, context.environ) for name in machine.PROGRAMS
        }
        private = keys.private_path(context)
        if entry(private).is_there:
            derived = self._asking.ask("key", partial(keys.derive, private, context.environ))
        agent = None if context.is_sandbox else self._put("agent", keys.ask_agent, context.environ)
        answer = self._asking.answer(derived) if derived else None
        public = answer.value if isinstance(answer, Known) else keys.Derived(answer) if answer is not None else None
        token_fact: Fact[Token | NoToken] | None = None
        if token is not None:
            token_fact = self._asking.answer(token)
        elif not context.is_local:
            token_fact = Unknown("the settings or the proxy are invalid, so no token was requested")
        caller = identity.look(context, known(context.settings), token_fact)
        network_facts = network.look(
            context, {name: (self._of(put) if put else None, self._of(asked)) for name, (put, asked) in hosts.items()}
        )
        return Surroundings(
            now=now,
            machine=machine.look(context, {name: self._of(question) for name, question in programs.items()}),
            keys=keys.look(context, public, self._of(agent) if agent else None),
            identity=caller,
            network=network_facts,
            configuration=_read_configuration(context),
            cloud=replace(self._ask_about_project(now, caller, network_facts), node=context.node),
        )

    def _ask_hosts(self) -> dict[str, tuple[Question[Fact[tuple[str, ...]]] | None, Question[Fact[Answer]]]]:
        """Start resolving and calling the hosts of the chosen cloud; none if no cloud may be called."""
        context, cloud = self._context, self._context.cloud
        if cloud is None or isinstance(context.proxy, Unknown):  # no request could be sent
            return {}
        return {
            name: (
                self._put(("name", name), network.resolve, name) if network.looks_up(context, name) else None,
                self._put(("host", name), network.ask, cloud, context.clock, name),
            )
            for name in cloud.origins
        }

    def _ask_for_token(self) -> Question[Token | NoToken] | None:
        """Start fetching a token. None if no token is needed, or none can be requested."""
        context = self._context
        tokens = context.cloud.tokens if context.cloud else None
        if tokens is None or isinstance(context.proxy, Unknown):
            return None
        # With an unreadable credentials file there is no token, and the error of google-auth is less clear.
        if isinstance(identity.read_file(context), Unknown):
            return None
        return self._asking.ask("token", partial(identity.fetch, tokens))

    def _ask_about_project(self, now: datetime, caller: Identity, network_facts: Network) -> Cloud:
        """Ask the cloud about the project, unless credentials or network make that impossible."""
        context = self._context
        obstacle = None
        if not isinstance(context.settings, Known):
            obstacle = "the settings cannot be read"
        elif context.closed is not None:
            obstacle = "the sandbox cannot be opened"
        elif not any(isinstance(host.answer, Known) for host in network_facts.hosts):
            obstacle = "the cloud was not reached"
        elif caller.needed and not isinstance(known(caller.token), Token):
            obstacle = "there are no credentials"
        if obstacle is not None:
            return Cloud(project=context.project, skip_reason=obstacle)
        if not isinstance(context.project, Known):
            return Cloud(project=context.project)
        name = context.project.value
        try:
            sources = context.sources()
        except TpuctlError as error:
            return Cloud(project=context.project, skip_reason=error.message)
        wanted = context.wishes.wanted(
            name, context.zone, NodeSpec(accelerator_type="", runtime_version=""), creates=False
        )
        questions = Questions(sources, self._asking, wanted)
        asked = questions.project(), questions.services(), questions.billing()
        allowed = self._asking.ask("permissions", lambda: sources.projects.test_permissions(name, NEEDED))
        try:
            project, services, billing = (self._asking.answer(question) for question in asked)
            permissions = self._asking.answer(allowed)
        except CredentialsError as error:
            return Cloud(project=context.project, skip_reason=error.message)
        facts = Facts(now=now, wanted=wanted, project=project, services=services, billing=billing)
        return Cloud(project=context.project, facts=facts, wanted_permissions=tuple(NEEDED), permissions=permissions)

    def _put(self, key: object, probe: Callable[..., Fact[T]], *arguments: object) -> Question[Fact[T]]:
        """Start a probe that returns a fact itself."""
        return self._asking.ask(key, partial(probe, *arguments))

    def _of(self, question: Question[Fact[T]]) -> Fact[T]:
        """Return the fact of a probe, Unknown if there was none in time."""
        answer = self._asking.answer(question)
        return answer.value if isinstance(answer, Known) else answer


def _read_configuration(context: Ways) -> Configuration:
    """Return settings, their files and the environment variables."""
    paths = (*((context.project_file,) if context.project_file else ()), context.user_file)
    file = gcloud.configuration_file(context.environ)
    variables = {
        name: text if name.startswith(_PLAIN) else "" for name, text in sorted(context.environ.items()) if text
    }
    endpoint = known(context.endpoint)
    return Configuration(
        settings=context.settings,
        problems=context.problems,
        files=context.files,
        entries=tuple(map(entry, paths)),
        gcloud_name=gcloud.configuration_name(context.environ),
        gcloud_entry=entry(file) if file else None,
        variables={name: text for name, text in variables.items() if name.startswith(_READ)},
        is_sandbox=context.is_sandbox,
        endpoint=endpoint.url() if endpoint else None,
    )

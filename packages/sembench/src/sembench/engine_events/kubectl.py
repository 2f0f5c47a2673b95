"""A pod's log through kubectl, with its refusals said in words."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
from pathlib import Path

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.schema import InputError

_HINTS = (
    ("unauthorized", "kubectl is not logged in: check `kubectl auth whoami` and the current context"),
    ("forbidden", "the account may not read logs there: it needs get on pods/log in the namespace"),
    ("namespaces", "check --namespace"),
    ("notfound", "check --pod and --namespace: kubectl get pods -n NAMESPACE"),
    ("not found", "check --pod and --namespace: kubectl get pods -n NAMESPACE"),
    ("a container name must be specified", "name one with --container"),
    ("is not valid for pod", "check --container"),
    ("previous terminated container", "check --container"),
    ("unable to connect", "the cluster cannot be reached: check the current context and the network"),
    ("refused", "the cluster cannot be reached: check the current context and the network"),
    ("no such host", "the cluster cannot be reached: check the current context and the network"),
    ("i/o timeout", "the cluster does not answer: check the current context and the network"),
    ("current-context", "no cluster is chosen: kubectl config use-context NAME"),
)


def collect_logs(
    *,
    namespace: str,
    pod: str,
    container: str | None,
    since_time: str | None,
    output: Path,
    timeout_s: float = 120.0,
    request_timeout_s: float = 30.0,
) -> str:
    """Write the pod's log to ``output``; gives back what kubectl had to say. InputError: 3 where it or the cluster
    refuses, 2 for a bad time."""
    check_time(since_time)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise InputError(
            "kubectl is not on PATH: install it, or copy the log and use summarize-engine-events", REFUSED_OUTSIDE
        )
    command = [
        kubectl,
        "logs",
        pod,
        f"--namespace={namespace}",
        "--timestamps",
        f"--request-timeout={request_timeout_s:g}s",
    ]
    command += [f"--container={container}"] if container else []
    command += [f"--since-time={since_time}"] if since_time else []
    return _run(command, output, timeout_s)


def check_time(since_time: str | None) -> None:
    """kubectl takes RFC 3339 only; a time without a zone would be read in whichever zone the cluster is."""
    if since_time is None:
        return
    try:
        moment = datetime.datetime.fromisoformat(since_time)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in since_time:
        raise InputError(f"--since-time {since_time}: expected a time with its zone, such as 2026-06-22T18:00:00Z")


def _run(command: list[str], output: Path, timeout_s: float) -> str:
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")  # Another may be collecting to it too.
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as log:
            finished = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, timeout=timeout_s, check=False
            )
        said = finished.stderr.decode("utf-8", errors="replace")
        if finished.returncode:
            raise InputError(_refusal(said, finished.returncode), REFUSED_OUTSIDE)
        partial.replace(output)
        return " ".join(said.split())[:500]
    except subprocess.TimeoutExpired:
        raise InputError(
            f"kubectl logs did not end within {timeout_s:g} s: narrow it with --since-time or raise --timeout",
            REFUSED_OUTSIDE,
        ) from None
    except OSError as error:
        raise InputError(f"--output-log {output}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _refusal(stderr: str, code: int) -> str:
    said = " ".join(stderr.split())[:500] or "nothing"
    hint = next((hint for words, hint in _HINTS if words in said.lower()), None)
    return f"kubectl logs ended with {code} and said: {said}" + (f"\n{hint}" if hint else "")

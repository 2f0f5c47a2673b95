from typing import Any

from semblend_tools import installing
from semblend_tools.clone import Clone

AS_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_uv_looks_where_pip_is_configured_to_look() -> None:
    listed = """\
global.cert='/etc/certificates.crt'
global.extra-index-url='file:///one/simple file:///two/simple'
global.find-links='/wheels /more-wheels'
global.index-url='https://packages.example/simple'
global.no-index='true'
global.timeout='180'
global.trusted-host='packages.example'
"""
    assert installing.as_pip_is_configured(listed) == AS_PIP | {
        "SSL_CERT_FILE": "/etc/certificates.crt",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "UV_FIND_LINKS": "/wheels,/more-wheels",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX": "file:///one/simple file:///two/simple",
        "UV_INSECURE_HOST": "packages.example",
        "UV_NO_INDEX": "1",
    }


def test_values_may_stand_on_lines_of_their_own() -> None:
    listed = r"global.extra-index-url='\nhttps://one.example/simple\nhttps://two.example/simple'"
    assert (
        installing.as_pip_is_configured(listed)["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
    )


def test_the_environment_wins_over_a_file_and_the_command_over_all_commands() -> None:
    listed = """\
:env:.index-url='https://environment.example/simple'
global.index-url='https://global.example/simple'
install.index-url='https://install.example/simple'
"""
    assert installing.as_pip_is_configured(listed)["UV_DEFAULT_INDEX"] == "https://environment.example/simple"
    of_files = listed.partition("\n")[2]
    assert installing.as_pip_is_configured(of_files)["UV_DEFAULT_INDEX"] == "https://install.example/simple"


def test_what_concerns_other_commands_or_nothing_that_uv_knows_is_left_out() -> None:
    listed = (
        "download.index-url='https://other.example'\nglobal.disable-pip-version-check='1'\nglobal.no-index='false'\n"
    )
    assert installing.as_pip_is_configured(listed) == AS_PIP
    assert installing.as_pip_is_configured("") == AS_PIP


def test_what_uv_was_told_itself_stands(monkeypatch: Any, real_clone: Clone) -> None:
    monkeypatch.setattr(installing, "output_of", lambda *_: "global.index-url='https://global.example/simple'\n")
    monkeypatch.setattr(installing, "tool_python", lambda _: "python")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    assert installing.uv_settings(real_clone)["UV_DEFAULT_INDEX"] == "https://global.example/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own.example/simple")
    assert "UV_DEFAULT_INDEX" not in installing.uv_settings(real_clone)

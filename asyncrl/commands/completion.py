"""`asyncrl completion bash`: a script that lets the shell complete commands and flags."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Sequence

from asyncrl import pages
from asyncrl.algorithm import algorithm_of
from asyncrl.commands.program import run_command
from asyncrl.config.groups import flag
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line

SHELLS = ("bash", "zsh")
BASH = """\
# asyncrl: put this into ~/.bashrc: eval "$(asyncrl completion bash)"
_asyncrl() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    case "${COMP_WORDS[1]}" in
%s
    esac
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "%s" -- "$word"))
    elif [ "${word#-}" != "$word" ]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}
complete -o filenames -F _asyncrl asyncrl
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def main(words: Sequence[str] | None = None) -> int:
    """Print the script; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    return run_command("asyncrl completion", lambda: completion(words))


def completion(words: Sequence[str]) -> int:
    """The same. Raises UsageError for another shell."""
    if {"-h", "--help"} & set(words):
        print_line(
            'usage: asyncrl completion {bash,zsh}\n\nPut into ~/.bashrc or ~/.zshrc: eval "$(asyncrl completion bash)"'
        )
        return 0
    if len(words) != 1 or words[0] not in SHELLS:
        raise UsageError(f"name a shell: {' or '.join(SHELLS)}")
    print_line((ZSH if words[0] == "zsh" else "") + script().rstrip())
    return 0


def script() -> str:
    """A function for bash, which zsh can use too."""
    from asyncrl.__main__ import ALIASES, COMMANDS

    flags = {page: flags_of_page(page) for page in pages.PAGES}
    flags |= {name: flags_of_command(ALIASES.get(name, name)) for name in COMMANDS}
    flags["train"] = sorted({one for page in pages.PAGES for one in flags[page]})
    cases = [f'    {name}) local flags="{" ".join(own)}" ;;' for name, own in flags.items()]
    return BASH % ("\n".join(cases), " ".join(flags))


def flags_of_page(page: str) -> list[str]:
    """All flags of a page, those with another name under their own."""
    fields = dataclasses.fields(algorithm_of(pages.module_of(page)).Config)
    return [*(flag(field.name) for field in fields), "--config", "--trust", "--help", "--version"]


def flags_of_command(name: str) -> list[str]:
    """All flags of a command that has a Config."""
    module = importlib.import_module(f"asyncrl.commands.{name}")
    config = getattr(module, "Config", None)
    return [*(flag(field.name) for field in dataclasses.fields(config)), "--help"] if config else ["--help"]

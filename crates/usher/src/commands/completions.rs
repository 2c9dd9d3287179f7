// SPDX-License-Identifier: GPL-2.0-only
//! `usher completions`: prints the completion script of a shell, which `clap_complete` generates
//! from the command line's definition, without hidden commands. For bash, a function is added that
//! completes the words after `--` as a command line; the scripts of zsh and fish do this already.

use clap_complete::Shell;

use crate::cli;
use crate::failure::Outcome;
use crate::output::Output;

/// Prints a shell's completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher completions bash > ~/.local/share/bash-completion/completions/usher
  usher completions zsh > ~/.zfunc/_usher
  usher completions fish > ~/.config/fish/completions/usher.fish")]
pub struct Args {
    /// Shell whose completion script is printed
    shell: Shell,
}

/// Completes the words after `--`: by bash-completion if it is loaded, else as the name of a command
/// and then as files.
const BASH_COMMANDS: &str = r#"
_usher_words() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$2")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$2")
        fi
        return
    done
    _usher "$@"
}
complete -F _usher_words -o nosort -o bashdefault -o default usher
"#;

/// Prints the script.
pub fn run(args: &Args, out: Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut cli::visible_command(),
        "usher",
        &mut script,
    );
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        script.push_str(BASH_COMMANDS);
    }
    out.text(&script)?;
    Ok(0)
}

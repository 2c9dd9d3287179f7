// SPDX-License-Identifier: GPL-2.0-only
//! `usher completions`: prints the completion script of a shell, which `clap_complete` generates
//! from the command line's definition, without hidden commands.
//!
//! - For bash, zsh and fish, a function is added that calls the hidden command `usher complete`. It
//!   completes values that exist only at run time, such as the pids and names of managed programs.
//! - For bash and fish, functions are added that complete the words after `--` as a command line.
//!   The script of zsh does this already.

use std::fmt::Write as _;

use clap_complete::Shell;

use crate::cli;
use crate::commands::complete;
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

/// The function that bash calls: completes the words after `--` by bash-completion if it is loaded,
/// else as the name of a command and then as files; completes the values that exist only at run
/// time; and calls the generated function for all other words. `$1` is the command as typed.
const BASH: &str = r#"
_usher_words() {
    local at line
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
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    ((${#COMPREPLY[@]})) || _usher "$@"
}
complete -F _usher_words -o nosort -o bashdefault -o default usher
"#;

/// The beginning of the generated function of zsh, which gets another name.
const ZSH_GENERATED: (&str, &str) = ("\n_usher() {\n", "\n_usher_generated() {\n");

/// The function that zsh calls: completes the values that exist only at run time, and calls the
/// generated function for all other words.
const ZSH: &str = r#"
_usher() {
    local -a lines values descriptions
    local line
    lines=(${(f)"$($words[1] complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)"})
    if (( ! $#lines )); then
        _usher_generated "$@"
        return
    fi
    for line in $lines; do
        values+=("${line%%$'\t'*}")
        descriptions+=("${line/$'\t'/  -- }")
    done
    compadd -V usher -l -d descriptions -a values
}
"#;

/// The last lines of the script of zsh, before which [`ZSH`] is inserted.
const ZSH_END: &str = "\nif [ \"$funcstack[1]\" = \"_usher\" ]; then\n";

/// The functions by which fish completes the words after `--` as a command line, and the values
/// that exist only at run time.
const FISH: &str = r#"
function __usher_has_command
    contains -- -- (commandline -opc)
end
function __usher_complete_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    set -e words[1..$at]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end
complete -c usher -n __usher_has_command -f -a '(__usher_complete_command)'
function __usher_has_values
    set -l words (commandline -opc)
    type -q $words[1]; or return
    set -g __usher_values (command $words[1] complete -- $words[2..-1] (commandline -ct) 2>/dev/null \
        | string replace -r '^--[^=]*=' '')
    set -q __usher_values[1]
end
complete -c usher -n __usher_has_values -k -f -a '$__usher_values'
"#;

/// Returns the definitions by which fish completes the values of options that exist only at run
/// time. For the value of an option, fish uses only definitions that name the option.
fn fish_options(command: &clap::Command) -> String {
    let mut text = String::new();
    for sub in command.get_subcommands() {
        let mut options = sub.get_arguments().filter(|arg| complete::has_values(arg));
        while let Some(long) = options.find_map(clap::Arg::get_long) {
            let name = sub.get_name();
            let _ = writeln!(
                text,
                "complete -c usher -n '__fish_usher_using_subcommand {name}; and __usher_has_values' \
                 -l {long} -k -x -a '$__usher_values'"
            );
        }
    }
    text
}

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
    match args.shell {
        Shell::Bash => script.push_str(BASH),
        Shell::Fish => {
            script.push_str(FISH);
            script.push_str(&fish_options(&cli::visible_command()));
        }
        Shell::Zsh => {
            script = script.replacen(ZSH_GENERATED.0, ZSH_GENERATED.1, 1);
            script = script.replacen(ZSH_END, &format!("{ZSH}{ZSH_END}"), 1);
        }
        _ => {}
    }
    out.text(&script)?;
    Ok(0)
}

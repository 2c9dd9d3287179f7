// SPDX-License-Identifier: GPL-2.0-only
//! The sections of manual pages that clap does not provide: exit status, environment, files, and
//! examples for commands without examples of their own. The lists of environment variables and
//! files are maintained here by hand.

use clap_mangen::roff::{Roff, bold, roman};

/// Commands that run a program and return its exit status.
const PASS_STATUS: &[&str] = &["usher run", "usher bg", "usher sched stats"];
/// Commands that run programs.
const RUN_PROGRAMS: &[&str] = &[
    "usher run",
    "usher bg",
    "usher mix",
    "usher profile",
    "usher sched stats",
];
/// Commands that give a program a heartbeat page and the OpenMP tool.
const GIVE_PAGES: &[&str] = &["usher run", "usher bg", "usher mix", "usher profile"];
/// Commands that use the socket or the journal in the runtime directory.
const USE_RUNTIME_DIR: &[&str] = &[
    "usher run",
    "usher bg",
    "usher attach",
    "usher detach",
    "usher wait",
    "usher status",
    "usher top",
    "usher explain",
    "usher daemon",
    "usher undo",
    "usher doctor",
    "usher mix",
    "usher profile",
    "usher sched",
];

/// A term of a list with its description.
type Entry = (&'static str, &'static str);

const ENVIRONMENT: &[Entry] = &[
    (
        "NO_COLOR, CLICOLOR, CLICOLOR_FORCE",
        "Control whether the output is coloured, unless --color is given.",
    ),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "Locale of the user. In a locale without UTF-8, drawings use ASCII.",
    ),
    ("USHER_RUNTIME_DIR", "Default of the option --runtime-dir."),
    (
        "XDG_RUNTIME_DIR",
        "Directory that contains the runtime directory `usher` of a user other than root.",
    ),
];
const STORE_ENVIRONMENT: &[Entry] = &[
    ("USHER_STORE", "Default of the option --store."),
    (
        "XDG_DATA_HOME, HOME",
        "Directories that contain the profile store of a user other than root: $XDG_DATA_HOME, \
         or else $HOME/.local/share.",
    ),
];
const PAGE_ENVIRONMENT: &[Entry] = &[
    (
        "USHER_HEARTBEAT",
        "Path of the program's heartbeat page. Unless the variable is set, Usher creates a page \
         and sets the variable to its path.",
    ),
    (
        "USHER_OMPT",
        "Path of the OpenMP tool libusher_ompt.so, if the tool is not in the installation \
         directory.",
    ),
    (
        "USHER_RUN",
        "Set by Usher for a managed program, to a value that is unique to the run. Usher recognises \
         by this value processes of the program whose parents have ended.",
    ),
];
const RUNTIME_FILES: &[Entry] = &[
    (
        "/run/usher",
        "Runtime directory of root and of the system's service. The runtime directory of another \
         user is $XDG_RUNTIME_DIR/usher, or else /run/user/UID/usher, or else /tmp/usher-UID.",
    ),
    (
        "usher.varlink",
        "Socket of the daemon, in the runtime directory.",
    ),
    (
        "instances/PID-START/journal.jsonl",
        "Journal that describes how to undo each change of a daemon, in the runtime directory.",
    ),
    (
        "daemon.log",
        "Messages of a daemon that another command started, in the runtime directory.",
    ),
];
const SCHED_FILES: &[Entry] = &[
    (
        "sched.varlink",
        "Socket of usher sched start --foreground, in the runtime directory.",
    ),
    (
        "sched.dump",
        "Dump that the kernel wrote when it ended Usher's scheduler because of an error, in the \
         runtime directory.",
    ),
];
const CONFIG_FILES: &[Entry] = &[(
    "/etc/usher/usher.toml",
    "Settings and rules of root's daemon. The file of another user is usher/usher.toml below \
     $XDG_CONFIG_HOME or ~/.config.",
)];
const STORE_FILES: &[Entry] = &[
    (
        "/var/lib/usher/profiles.db",
        "Profile store of root. The profile store of another user is usher/profiles.db below \
         $XDG_DATA_HOME or ~/.local/share.",
    ),
    (
        "thresholds.toml",
        "Thresholds of background work, written by usher bench calibrate, in the directory of \
         the profile store.",
    ),
];

/// Returns the section EXIT STATUS, for pages without a paragraph about the exit status.
pub fn exit_status(name: &str) -> Roff {
    let mut section = heading("EXIT STATUS");
    let passes = is_listed(PASS_STATUS, name);
    let success = match passes {
        true => "Exit status of the program that Usher ran; 128+N if signal N ended the program.",
        false => "The command succeeded.",
    };
    entry(&mut section, if passes { "STATUS" } else { "0" }, success);
    entry(
        &mut section,
        "125",
        "Usher failed. One line on standard error gives the reason.",
    );
    if is_listed(RUN_PROGRAMS, name) {
        entry(
            &mut section,
            "126",
            "The program to run cannot be executed.",
        );
        entry(&mut section, "127", "The program to run does not exist.");
    }
    section
}

/// The environment variables that a command reads.
pub fn environment(command: &clap::Command, name: &str) -> Roff {
    let mut section = heading("ENVIRONMENT");
    let pages: &[Entry] = match is_listed(GIVE_PAGES, name) {
        true => PAGE_ENVIRONMENT,
        false => &[],
    };
    let store: &[Entry] = match uses_store(command) {
        true => STORE_ENVIRONMENT,
        false => &[],
    };
    for (term, text) in ENVIRONMENT.iter().chain(store).chain(pages) {
        entry(&mut section, term, text);
    }
    section
}

/// The files that a command uses.
pub fn files(command: &clap::Command, name: &str) -> Roff {
    let groups: [(bool, &[Entry]); 4] = [
        (is_listed(&["usher daemon"], name), CONFIG_FILES),
        (is_listed(USE_RUNTIME_DIR, name), RUNTIME_FILES),
        (is_listed(&["usher sched"], name), SCHED_FILES),
        (uses_store(command), STORE_FILES),
    ];
    let used = groups.iter().filter(|(is_used, _)| *is_used);
    let mut entries = used.flat_map(|(_, entries)| *entries).peekable();
    let mut section = heading("FILES");
    if entries.peek().is_none() {
        section.text([roman(
            "The command uses only the files that its arguments name.",
        )]);
    }
    for (term, text) in entries {
        entry(&mut section, term, text);
    }
    section
}

/// The lines of other pages' examples that show the command, or else a request for its help.
pub fn examples(name: &str, others: &[String]) -> Roff {
    let of_command = |line: &&String| {
        let words = line.strip_prefix(name);
        words.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut lines: Vec<String> = others.iter().filter(of_command).cloned().collect();
    if lines.is_empty() {
        lines.push(format!("{name} --help"));
    }
    let mut section = heading("EXAMPLES");
    section.control("nf", []);
    for line in lines {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}

/// Returns whether the list contains the command or one of its parent commands. The page of `usher`
/// covers all commands.
fn is_listed(list: &[&str], name: &str) -> bool {
    let above = |listed: &str| {
        let rest = name.strip_prefix(listed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    name == "usher" || list.iter().any(|listed| above(listed))
}

fn uses_store(command: &clap::Command) -> bool {
    let has_option = |arg: &clap::Arg| arg.get_long() == Some("store");
    command.get_name() == "usher" || command.get_arguments().any(has_option)
}

fn heading(text: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", [text]);
    section
}

fn entry(section: &mut Roff, term: &str, text: &str) {
    section.control("TP", []);
    section.text([bold(term)]);
    section.text([roman(text)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(section: &Roff) -> String {
        section.to_roff().replace("\\-", "-")
    }

    #[test]
    fn commands_that_run_programs_return_their_exit_status() {
        assert!(plain(&exit_status("usher run")).contains("128+N"));
        assert!(plain(&exit_status("usher sched stats")).contains("127"));
        let other = plain(&exit_status("usher sched stop"));
        assert!(!other.contains("128+N") && other.contains("125"));
    }

    #[test]
    fn commands_with_a_store_name_its_file_and_variable() {
        let with = clap::Command::new("run").arg(clap::Arg::new("path").long("store"));
        assert!(plain(&files(&with, "usher run")).contains("profiles.db"));
        assert!(plain(&environment(&with, "usher run")).contains("USHER_STORE"));
        let without = clap::Command::new("topo");
        assert!(plain(&files(&without, "usher topo")).contains("uses only the files"));
        assert!(!plain(&environment(&without, "usher topo")).contains("USHER_STORE"));
    }

    #[test]
    fn examples_come_from_other_pages_or_are_a_request_for_help() {
        let others = [
            "usher sim casas --out report".to_owned(),
            "usher sim casasx".to_owned(),
        ];
        let section = plain(&examples("usher sim casas", &others));
        assert!(section.contains("--out report") && !section.contains("casasx"));
        assert!(plain(&examples("usher x", &others)).contains("usher x --help"));
    }
}

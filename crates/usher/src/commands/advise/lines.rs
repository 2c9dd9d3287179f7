// SPDX-License-Identifier: GPL-2.0-only
//! Command lines that run the advised configuration: with Usher, with GNU parallel and with xargs.
//!
//! Words are quoted for a POSIX shell. `{copy}` becomes the replacement string of parallel and
//! xargs. A program without `{cpus}` in its command adapts to its affinity mask, so each job is run
//! by `usher run --cores`, which sets the mask. There is no line for parallel if a word of the
//! command contains a brace, because parallel would replace it.

use std::ffi::OsString;

use schemars::JsonSchema;
use serde::Serialize;
use usher_policy::advise::candidates::{CopyConfig, MachineSize};

use crate::launch::placeholders::{self, COPY, CPUS};
use crate::output::quoted;

/// Command lines that run a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommandLines {
    /// With `usher run`.
    pub usher: String,
    /// With GNU parallel; `None` if parallel would change the command.
    pub parallel: Option<String>,
    /// With xargs.
    pub xargs: String,
}

/// Returns the command lines for a configuration. Words that are no UTF-8 are shown with
/// replacement characters.
pub fn command_lines(command: &[OsString], config: CopyConfig, size: MachineSize) -> CommandLines {
    let copies = config.copies;
    // More copies than cores share cores, which is the division without --cores.
    let cores = match copies > size.cores {
        true => String::new(),
        false => format!("--cores {} ", config.cores),
    };
    let cpus = config.cpus.to_string();
    let is_divided = placeholders::contains(command, CPUS);
    let replaced = |text: &str| -> Vec<OsString> {
        let words = command.iter();
        let words = words.map(|word| placeholders::replace_in(word, CPUS, &cpus));
        words
            .map(|word| placeholders::replace_in(&word, COPY, text))
            .collect()
    };
    let seat = match is_divided {
        true => String::new(),
        false => format!("usher run --cores {} -- ", config.cores),
    };
    let marker = marker(command);
    let has_copy = placeholders::contains(command, COPY);
    let plain = replaced("");
    let parallel = (!placeholders::contains(&plain, "{")).then(|| {
        let count = if has_copy { "" } else { "-N0 " };
        let words = joined(&replaced("{}"));
        format!("seq {copies} | parallel -j {copies} {count}-q {seat}{words}")
    });
    let words = joined(&replaced(&marker));
    CommandLines {
        usher: format!("usher run --copies {copies} {cores}-- {}", joined(command)),
        parallel,
        xargs: format!("seq {copies} | xargs -P {copies} -I{marker} {seat}{words}"),
    }
}

/// Returns a replacement string for xargs that the command does not contain.
fn marker(command: &[OsString]) -> String {
    let taken = |marker: &String| placeholders::contains(command, marker);
    let marks = (1..).map(|length| "@".repeat(length));
    marks
        .into_iter()
        .find(|marker| !taken(marker))
        .unwrap_or_default()
}

/// Quotes words for a POSIX shell and joins them.
fn joined(words: &[OsString]) -> String {
    let quoted = words.iter().map(quoted);
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(words: &[&str], copies: u32, cores: u32) -> CommandLines {
        let command: Vec<OsString> = words.iter().map(OsString::from).collect();
        let config = CopyConfig {
            copies,
            cores,
            cpus: 2 * cores,
        };
        let size = MachineSize { cores: 8, cpus: 16 };
        command_lines(&command, config, size)
    }

    #[test]
    fn the_lines_run_the_configuration() {
        let shown = lines(
            &["x264", "--threads", "{cpus}", "-o", "/dev/null", "in.y4m"],
            4,
            2,
        );
        assert_eq!(
            shown.usher,
            "usher run --copies 4 --cores 2 -- x264 --threads {cpus} -o /dev/null in.y4m"
        );
        let words = "x264 --threads 4 -o /dev/null in.y4m";
        let expected = format!("seq 4 | parallel -j 4 -N0 -q {words}");
        assert_eq!(shown.parallel.unwrap(), expected);
        assert_eq!(shown.xargs, format!("seq 4 | xargs -P 4 -I@ {words}"));
    }

    #[test]
    fn words_are_quoted_and_copies_are_numbered() {
        let shown = lines(&["sh", "-c", "solve -t{cpus} < 'in @' > out{copy}"], 2, 1);
        assert!(shown.xargs.starts_with("seq 2 | xargs -P 2 -I@@ sh -c "));
        let script = "solve -t2 < 'in @' > out@@";
        let words = shlex::split(shown.xargs.split_once("-I@@ ").unwrap().1).unwrap();
        assert_eq!(words, ["sh", "-c", script]);
        let parallel = shown.parallel.unwrap();
        assert!(
            parallel.starts_with("seq 2 | parallel -j 2 -q sh -c"),
            "{parallel}"
        );
        assert!(parallel.contains("out{}"), "{parallel}");
    }

    #[test]
    fn a_command_without_cpus_gets_its_mask_from_usher() {
        let shown = lines(&["./solver", ""], 3, 5);
        let expected = "seq 3 | xargs -P 3 -I@ usher run --cores 5 -- ./solver ''";
        assert_eq!(shown.xargs, expected);
        let shared = lines(&["true"], 16, 1).usher;
        assert_eq!(shared, "usher run --copies 16 -- true");
        assert_eq!(lines(&["awk", "{print}"], 3, 5).parallel, None);
    }
}

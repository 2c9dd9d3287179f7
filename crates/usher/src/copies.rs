// SPDX-License-Identifier: GPL-2.0-only
//! Formats sentences for `usher status` and `usher explain`: about the copies that launchers inside
//! a program started, and about the thread variables that `usher run` has set. The cost is
//! proportional to the number of copies.

use usher_model::CpuSet;
use usher_report::text;

use crate::api::{self, Copy_state};

/// Describes the copies of a program in sentences without a full stop.
pub fn sentences(program: &api::Program) -> Vec<String> {
    let groups = program.copies.iter();
    let mut sentences: Vec<String> = groups.clone().map(sentence).collect();
    sentences.extend(groups.filter_map(|group| group.remedy.clone()));
    sentences.extend(program.hints.as_ref().map(hint_sentence));
    sentences.extend(match program.unrecognised_workers {
        0 => None,
        1 => Some(
            "1 other child process of these launchers is no copy, and runs as a part of its \
             launcher"
                .to_owned(),
        ),
        count => Some(format!(
            "{count} other child processes of these launchers are no copies, and run as a part of \
             their launcher"
        )),
    });
    sentences
}

/// Describes the variables that the launcher of the program has set.
fn hint_sentence(hints: &api::ThreadHints) -> String {
    let source = match hints.from_copies {
        true => "the number of CPUs of a copy in an earlier run",
        false => "the number of CPUs at the start of the program",
    };
    format!(
        "usher run set {} to {}, {source}; --no-hints sets no variables",
        text::list(&hints.variables),
        hints.threads
    )
}

fn sentence(group: &api::CopyGroup) -> String {
    let copies = text::copies(group.copies.len());
    let kind = match group.forked {
        true => " (forks)",
        false => "",
    };
    let mut parts: Vec<String> = confined(group).into_iter().collect();
    let others = [
        (
            Copy_state::waiting,
            "waiting (other copies may use the same CPUs)",
        ),
        (
            Copy_state::widened,
            "may use all CPUs of the program, because the thread pools exist",
        ),
        (
            Copy_state::serial,
            "may use all CPUs of the program, because copies work with one thread",
        ),
    ];
    for (state, does) in others {
        let count = group.copies.iter().filter(|one| one.state == state).count();
        if count > 0 {
            parts.push(format!("{count} {does}"));
        }
    }
    parts.extend(left_alone(group));
    let narrowed = match group.narrows_launcher {
        true => "; new copies inherit the CPUs of a copy from the launcher",
        false => "",
    };
    format!(
        "process {} started {copies} of {}{kind}: {}{narrowed}",
        group.launcher,
        group.program,
        parts.join(", ")
    )
}

/// Describes the copies of a group that Usher does not change; `None` if there are none.
fn left_alone(group: &api::CopyGroup) -> Option<String> {
    let copies = group.copies.iter();
    let left_alone = copies.filter(|one| one.state == Copy_state::left_alone);
    let masks: Vec<CpuSet> = left_alone.filter_map(|one| one.cpus.parse().ok()).collect();
    let all = masks.iter().fold(CpuSet::new(), |all, one| all.or(one));
    let keeps = match masks.len() {
        0 => return None,
        1 => "1 keeps its own affinity mask".to_owned(),
        count => format!("{count} keep their own affinity masks"),
    };
    Some(match all.is_empty() {
        true => keeps,
        false => format!("{keeps}, on {}", text::cpus(&all.to_string())),
    })
}

/// Describes the confined copies of a group; `None` if no copy is confined.
fn confined(group: &api::CopyGroup) -> Option<String> {
    let copies = group.copies.iter();
    let confined = copies.filter(|one| one.state == Copy_state::confined);
    let parts: Vec<CpuSet> = confined.filter_map(|one| one.cpus.parse().ok()).collect();
    let least = parts.iter().map(CpuSet::len).min()?;
    let most = parts.iter().map(CpuSet::len).max()?;
    let all = parts.iter().fold(CpuSet::new(), |all, one| all.or(one));
    let each = match least == most {
        true => text::count(least, "CPU"),
        false => format!("{least} to {most} CPUs"),
    };
    let cpus = text::cpus(&all.to_string());
    Some(format!(
        "{} confined to {each} each, on {cpus}",
        parts.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(pid: i64, cpus: &str, state: Copy_state) -> api::Copy {
        api::Copy {
            pid,
            cpus: cpus.to_owned(),
            threads: 1,
            state,
        }
    }

    fn group(copies: Vec<api::Copy>) -> api::CopyGroup {
        api::CopyGroup {
            launcher: 7,
            program: "python3".to_owned(),
            forked: false,
            narrows_launcher: false,
            copies,
            remedy: None,
        }
    }

    #[test]
    fn names_the_cpus_of_confined_copies() {
        let two = ["0", "1"].map(|cpus| copy(1, cpus, Copy_state::confined));
        assert_eq!(
            sentence(&group(two.to_vec())),
            "process 7 started 2 copies of python3: 2 confined to 1 CPU each, on CPUs 0-1"
        );
        let uneven = ["0", "1-2"].map(|cpus| copy(1, cpus, Copy_state::confined));
        let text = sentence(&group(uneven.to_vec()));
        assert!(
            text.contains("2 confined to 1 to 2 CPUs each, on CPUs 0-2"),
            "{text}"
        );
    }

    #[test]
    fn names_the_variables_that_were_set_and_the_reason() {
        let hints = api::ThreadHints {
            threads: 2,
            variables: ["OMP_NUM_THREADS", "GOMAXPROCS"]
                .map(str::to_owned)
                .to_vec(),
            from_copies: true,
        };
        let by_request = api::ThreadHints {
            from_copies: false,
            ..hints.clone()
        };
        assert_eq!(
            hint_sentence(&hints),
            "usher run set OMP_NUM_THREADS and GOMAXPROCS to 2, the number of CPUs of a copy in an \
             earlier run; --no-hints sets no variables"
        );
        let text = hint_sentence(&by_request);
        assert!(text.contains("at the start of the program"), "{text}");
    }

    #[test]
    fn names_each_state_of_copies_and_the_launcher() {
        let states = [
            Copy_state::confined,
            Copy_state::waiting,
            Copy_state::widened,
            Copy_state::left_alone,
        ];
        let copies = states.map(|state| copy(1, "0", state)).to_vec();
        let text = sentence(&api::CopyGroup {
            narrows_launcher: true,
            forked: true,
            ..group(copies)
        });
        assert_eq!(
            text,
            "process 7 started 4 copies of python3 (forks): 1 confined to 1 CPU each, on CPU 0, 1 \
             waiting (other copies may use the same CPUs), 1 may use all CPUs of the program, \
             because the thread pools exist, 1 keeps its own affinity mask, on CPU 0; new copies \
             inherit the CPUs of a copy from the launcher"
        );
    }
}

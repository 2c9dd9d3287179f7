// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: subjects of commits have at most 72 characters (CONTRIBUTING.md, "Commits"). The rule does
//! not check commits before the commit that added this file, commits before the last release tag,
//! and merges. If there is no git history, the rule is skipped. The check runs git at most three
//! times, without a time limit.

use std::path::Path;
use std::process::Command;

/// Maximum number of characters of a subject.
const SUBJECT_CHARS: usize = 72;
/// The rule applies to commits after the commit that added this file.
const SINCE: &str = "crates/tidy/src/subjects.rs";

/// The reason why the subjects of a checkout cannot be read: git is missing, or the checkout is no
/// repository.
#[derive(Debug)]
pub struct NoHistory(pub String);

/// Returns the subjects that are too long, with their commits. Checks the commits after the commit
/// that added this file and after the last release tag (`v*`).
///
/// # Errors
/// If there is no git history.
pub fn too_long(root: &Path) -> Result<Vec<String>, NoHistory> {
    let log = ["log", "--diff-filter=A", "--format=%H", "-1", "--", SINCE];
    let added = git(root, &log)?;
    let added = added.trim();
    // The history does not contain the commit that added this file, so there are no commits to
    // check.
    if added.is_empty() {
        return Ok(Vec::new());
    }
    let range = format!("{added}..HEAD");
    let excluded = release(root).map(|tag| format!("^{tag}"));
    let mut log = vec!["log", "--no-merges", "--format=%h %s", &range];
    log.extend(excluded.as_deref());
    Ok(over_limit(&git(root, &log)?))
}

/// Returns the last release tag that the checked-out commit contains.
fn release(root: &Path) -> Option<String> {
    let tag = git(root, &["describe", "--tags", "--abbrev=0", "--match", "v*"]).ok()?;
    Some(tag.trim().to_owned())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, NoHistory> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .map_err(|error| NoHistory(format!("git: {error}")))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(NoHistory(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// Returns the lines `COMMIT SUBJECT` of `log` with subjects that are too long.
fn over_limit(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| {
            let (_, subject) = line.split_once(' ')?;
            let chars = subject.chars().count();
            (chars > SUBJECT_CHARS).then(|| {
                format!(
                    "{line}: the subject has {chars} characters, at most {SUBJECT_CHARS} are \
                     allowed"
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::over_limit;

    #[test]
    fn counts_characters_of_the_subject() {
        let longest = "ä".repeat(72);
        let log = format!("1234567 {longest}\n89abcde {longest}x\n");
        assert_eq!(
            over_limit(&log),
            [format!(
                "89abcde {longest}x: the subject has 73 characters, at most 72 are allowed"
            )]
        );
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the reader of the configuration file.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn error(text: &str) -> String {
    parse(Path::new("/x.toml"), text).unwrap_err().to_string()
}

/// Texts and the beginnings of their errors.
const ERRORS: [(&str, &str); 22] = [
    (
        "[[rule]]\nexecutabel = 'x'\n",
        "/x.toml:2: unknown field `executabel`",
    ),
    (
        "\n[[rule]]\nuser = 'no such user'\n",
        "/x.toml:3: `user`: no user has the name",
    ),
    (
        "[[rule]]\nuser = 1.5\n",
        "/x.toml:2: `user`: expected the name or the number",
    ),
    (
        "[[rule]]\ncommand = '[x'\n",
        "/x.toml:2: `command`: invalid pattern '[x'",
    ),
    (
        "[[rule]]\ncommand = ''\n",
        "/x.toml:2: `command`: a pattern must have 1",
    ),
    (
        "[[rule]]\nexecutable = 'a/b'\n",
        "/x.toml:2: `executable`: the path of an",
    ),
    (
        "[[rule]]\nweight = 2.0\n",
        "/x.toml:1: rule 1: it has no condition",
    ),
    (
        "[[rule]]\nuser=0\nweight = 0.0\n",
        "/x.toml:3: `weight`: the weight of a program",
    ),
    (
        "[[rule]]\nuser=0\ncores = 0\n",
        "/x.toml:3: `cores`: the number of cores must be a positive",
    ),
    (
        "[[rule]]\nuser=0\naction = 'ignore'\ncores = 2\n",
        "/x.toml:1: rule 1: `cores` has an effect only",
    ),
    (
        "[[rule]]\nuser=0\nweight = 'x'\n",
        "/x.toml:3: `weight`: invalid type",
    ),
    (
        "[[rule]]\nuser=0\naction = 'seta'\n",
        "/x.toml:3: `action`: 'seta' is not one of",
    ),
    (
        "[[rule]]\nuser=0\nattach = true\naction = 'ignore'",
        "/x.toml:1: rule 1: attach",
    ),
    (
        "[[rule]]\nuser=0\nbackground_policy = 'eii'",
        "/x.toml:3: `background_policy` has",
    ),
    (
        "[daemon]\npolicy = 'ushr'\n",
        "/x.toml:2: `policy`: 'ushr' is not one of",
    ),
    (
        "[daemon]\nmetrics = '0.0.0.0:1'\n",
        "/x.toml:2: `metrics`: 0.0.0.0 is not",
    ),
    (
        "[daemon]\nthresholds = 'x'\n",
        "/x.toml:2: `thresholds`: the path must be",
    ),
    (
        "[daemon]\nvariation = 'no'\n",
        "/x.toml:2: `variation`: invalid type",
    ),
    (
        "[defaults]\nweight = -1.0\n",
        "/x.toml:2: `weight`: the weight",
    ),
    ("a =\n", "/x.toml:1: "),
    (
        "# x\n[rule] # one\nuser = 0\n",
        "/x.toml:2: write `[[rule]]` instead of `[rule]`",
    ),
    (
        "[[rule]]\nuser = '99999999999'\n",
        "/x.toml:2: `user`: no user has the name",
    ),
];

#[test]
fn variation_is_unset_true_or_false() {
    let variation = |text| parse(Path::new("/x.toml"), text).unwrap().daemon.variation;
    assert_eq!(variation("[daemon]\n"), None);
    assert_eq!(variation("[daemon]\nvariation = false\n"), Some(false));
    assert_eq!(variation("[daemon]\nvariation = true\n"), Some(true));
}

#[test]
fn every_error_names_file_line_and_key() {
    for (text, expected) in ERRORS {
        let actual = error(text);
        assert!(actual.starts_with(expected), "{actual}");
        assert!(!actual.contains('\n'), "{actual}");
    }
    let close = error("[[rule]]\nexecutabel = 'x'\n");
    assert!(
        close.ends_with("; a similar name exists: `executable`"),
        "{close}"
    );
    let close = error("[[rule]]\nuser = 0\naction = 'backgruond'\n");
    assert!(
        close.ends_with("; a similar name exists: 'background'"),
        "{close}"
    );
    let close = error("[[rule]]\nuser = 0\naction = 'bg'\n");
    assert!(
        close.ends_with("a similar name exists: 'background'"),
        "{close}"
    );
    let many = "[[rule]]\nuser = 0\n".repeat(RULES_MAX + 1);
    assert!(error(&many).contains("more than 256 rules"));
}

#[test]
fn a_file_that_others_can_change_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usher.toml");
    assert!(load(Some(&path)).is_err());
    std::fs::write(&path, "[[rule]]\nuser = 'root'\n").unwrap();
    let loaded = load(Some(&path)).unwrap();
    assert_eq!(loaded.rules.rules[0].conditions.user, Some(0));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let error = format!("{:#}", load(Some(&path)).unwrap_err());
    assert!(
        error.contains("usher.toml': other users may write to it"),
        "{error}"
    );
    let error = format!("{:#}", load(Some(dir.path())).unwrap_err());
    assert!(error.ends_with("it is not a regular file"), "{error}");
}

#[test]
fn a_number_in_quotes_is_a_user() {
    let config = parse(Path::new("/x.toml"), "[[rule]]\nuser = '4294967291'\n").unwrap();
    assert_eq!(config.rules.rules[0].conditions.user, Some(4_294_967_291));
}

#[test]
fn a_link_without_a_target_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usher.toml");
    assert!(!is_link(&path));
    std::os::unix::fs::symlink(dir.path().join("gone"), &path).unwrap();
    assert!(is_link(&path) && is_absent(&read(&path).unwrap_err()));
}

#[test]
fn the_files_in_the_documentation_are_valid() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        // This machine has no user of the example.
        let text = block.split("```").next().unwrap().replace("alice", "root");
        let parsed = parse(Path::new("docs/configuration.md"), &text).unwrap();
        assert!(!parsed.rules.rules.is_empty());
    }
}

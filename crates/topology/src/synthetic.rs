// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits and checks of one-line descriptions of a machine's topology.
//!
//! hwloc's syntax is a list of levels from large to small, each with a type and its number per
//! object of the level above: `package:4 die:2 core:6 pu:1`. Attributes follow a level in
//! parentheses, attached memory in brackets; hwloc parses attributes and memory. This module checks
//! characters, brackets, numbers and the order of types before hwloc gets the text, because hwloc
//! itself does not limit the number of objects that it builds.
//!
//! Limits: 4,096 bytes of ASCII, 8,192 CPUs, and 8,192 as the number of a single level. The check
//! takes linear time in the length of the text. The first error is returned.

/// Maximum number of logical CPUs of a description: the maximum of Linux (`CONFIG_NR_CPUS` on
/// x86-64). The time of hwloc grows with the square of the number: seconds at this limit, minutes
/// beyond.
pub(crate) const CPUS_MAX: u64 = 8_192;
/// Maximum length of a description in bytes.
const LENGTH_MAX: usize = 4_096;

/// Checks the numbers and the order of the levels, and returns the complete description: hwloc
/// requires the level `pu` at the end. If the last level has another type, `pu:1` (one hardware
/// thread per core) is appended.
///
/// # Errors
/// Returns one line with the reason, without the description itself.
pub(crate) fn check(description: &str) -> Result<String, String> {
    if description.len() > LENGTH_MAX {
        return Err(format!(
            "the description has {} bytes; the maximum is {LENGTH_MAX}",
            description.len()
        ));
    }
    if let Some(odd) = description
        .chars()
        .find(|c| !c.is_ascii() || (c.is_ascii_control() && !c.is_ascii_whitespace()))
    {
        return Err(format!(
            "the description contains the invalid character '{}'",
            odd.escape_debug()
        ));
    }
    let levels = levels(description)?;
    known(&levels)?;
    if levels.is_empty() {
        return Err("the description contains no level such as core:4".to_owned());
    }
    ordered(&levels)?;
    let mut cpus: u64 = 1;
    for (level, memory) in &levels {
        let count = count(level)?;
        if !memory {
            cpus = cpus.saturating_mul(count);
        }
        if cpus > CPUS_MAX || count > CPUS_MAX {
            return Err(format!(
                "the description has more than {CPUS_MAX} CPUs at the level '{level}'"
            ));
        }
    }
    let last = levels.iter().rfind(|(_, memory)| !memory);
    Ok(match last {
        Some((level, _)) if !is_bare(level) && rank(level) != Some(PU) => {
            format!("{description} pu:1")
        }
        _ => description.to_owned(),
    })
}

/// Rank of the level `pu`, the logical CPUs.
const PU: usize = 3;

/// Returns the rank of a level with a fixed position in the order of levels, from 0 for the
/// largest. Returns `None` for other levels (caches, groups, NUMA nodes), which may be anywhere
/// above the cores.
fn rank(level: &str) -> Option<usize> {
    let name = level.split(':').next().unwrap_or(level);
    match name.to_ascii_lowercase().as_str() {
        "pack" | "package" | "socket" => Some(0),
        "die" => Some(1),
        "core" => Some(2),
        "pu" => Some(PU),
        _ => None,
    }
}

/// The names of levels. hwloc also accepts abbreviations and longer spellings of them, such as
/// `NUMANode` and `L3Cache`.
const NAMES: [&str; 13] = [
    "package", "socket", "die", "numa", "node", "group", "l5", "l4", "l3", "l2", "l1", "core", "pu",
];

/// Rejects a misspelt name of a level, with the closest name.
fn known(levels: &[(String, bool)]) -> Result<(), String> {
    for (level, _) in levels.iter().filter(|(level, _)| !is_bare(level)) {
        let name = level
            .split(':')
            .next()
            .unwrap_or(level)
            .to_ascii_lowercase();
        let is_known = NAMES
            .iter()
            .any(|known| known.starts_with(&name) || name.starts_with(known));
        let closest = usher_model::closest_name(&name, NAMES);
        if let Some(closest) = closest.filter(|_| !is_known) {
            return Err(format!(
                "the level '{level}' is unknown; a similar level exists: {closest}"
            ));
        }
    }
    Ok(())
}

/// Returns whether the level is a bare number, for which hwloc selects the type.
fn is_bare(level: &str) -> bool {
    level.starts_with(|c: char| c.is_ascii_digit())
}

fn ordered(levels: &[(String, bool)]) -> Result<(), String> {
    let ranked = levels
        .iter()
        .filter(|(_, memory)| !memory)
        .filter_map(|(level, _)| Some((level, rank(level)?)));
    let mut above: Option<(&String, usize)> = None;
    for (level, rank) in ranked {
        match above {
            Some((larger, of)) if of >= rank => {
                return Err(format!(
                    "the level '{level}' cannot be inside the level '{larger}'"
                ));
            }
            _ => above = Some((level, rank)),
        }
    }
    Ok(())
}

/// Returns the levels without their attributes, each with a flag for attached memory.
fn levels(description: &str) -> Result<Vec<(String, bool)>, String> {
    let mut levels = vec![(String::new(), false)];
    let (mut attributes, mut memory) = (false, false);
    for c in description.chars() {
        match c {
            '(' if !attributes => attributes = true,
            ')' if attributes => attributes = false,
            '[' if !attributes && !memory => memory = true,
            ']' if !attributes && memory => memory = false,
            '(' | ')' | '[' | ']' => {
                return Err(format!("the bracket '{c}' has no matching bracket"));
            }
            _ if attributes => continue,
            c if c.is_ascii_whitespace() => {}
            c => {
                if let Some((level, of_memory)) = levels.last_mut() {
                    level.push(c);
                    *of_memory = memory;
                }
                continue;
            }
        }
        levels.push((String::new(), false));
    }
    if attributes || memory {
        return Err("a parenthesis or bracket in the description is not closed".to_owned());
    }
    levels.retain(|(level, _)| !level.is_empty());
    Ok(levels)
}

/// Returns the number of a level: 4 for `core:4` or for a bare `4`. Levels of attached memory need
/// a number, too.
fn count(level: &str) -> Result<u64, String> {
    let digits = match level.split_once(':') {
        Some((_, digits)) => digits,
        None if is_bare(level) => level,
        None => return Err(format!("the level '{level}' has no count, as in {level}:2")),
    };
    match digits.parse::<u64>() {
        Ok(0) => Err(format!(
            "the count of the level '{level}' is 0; it must be at least 1"
        )),
        Ok(count) => Ok(count),
        Err(_) => Err(format!(
            "'{digits}' is not a valid count of the level '{level}'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_hwlocs_documented_syntax() {
        for description in [
            "package:4 die:2 core:6 pu:1",
            "2 4 1",
            "numa:2 package:1 l3:2(size=32MB) l2:4 core:1 pu:2",
            "(memory=1GB) package:2 [numa:1(memory=8GB)] core:8 pu:2(indexes=0,8)",
            "Package:2 NUMANode:1 L3Cache:1 L2d:2 Core:2 PU:2",
        ] {
            assert_eq!(check(description), Ok(description.to_owned()));
        }
    }

    #[test]
    fn adds_omitted_hardware_thread_level() {
        assert_eq!(check("package:2 core:4").unwrap(), "package:2 core:4 pu:1");
        assert_eq!(check("package:2 l3:4").unwrap(), "package:2 l3:4 pu:1");
        assert_eq!(check("2 4").unwrap(), "2 4");
    }

    #[test]
    fn rejects_invalid_descriptions_with_reason() {
        for (description, reason) in [
            ("", "contains no level"),
            ("  ", "contains no level"),
            ("package:0", "the count of the level 'package:0' is 0"),
            (
                "core:99999999",
                "more than 8192 CPUs at the level 'core:99999999'",
            ),
            ("core:99999999999999999999", "is not a valid count"),
            (
                "package:64 core:128 pu:2",
                "more than 8192 CPUs at the level 'pu:2'",
            ),
            ("package", "the level 'package' has no count"),
            (
                "package: core:2",
                "'' is not a valid count of the level 'package:'",
            ),
            (
                "core:-1",
                "'-1' is not a valid count of the level 'core:-1'",
            ),
            (
                "core:4 package:2 pu:1",
                "the level 'package:2' cannot be inside the level 'core:4'",
            ),
            (
                "core:4 core:2",
                "the level 'core:2' cannot be inside the level 'core:4'",
            ),
            (
                "packege:2 core:4",
                "the level 'packege:2' is unknown; a similar level exists: package",
            ),
            (
                "package:2 croe:4",
                "the level 'croe:4' is unknown; a similar level exists: core",
            ),
            ("core:2(size=3", "is not closed"),
            ("core:2)", "the bracket ')' has no matching bracket"),
            ("[numa:2 core:2", "is not closed"),
            ("core:2\0", "the invalid character '\\0'"),
            ("corée:2", "the invalid character 'é'"),
        ] {
            let message = check(description).unwrap_err();
            assert!(message.contains(reason), "{description}: {message}");
        }
        assert!(
            check(&"core:1 ".repeat(1000))
                .unwrap_err()
                .contains("the maximum is")
        );
    }
}

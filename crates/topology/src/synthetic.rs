// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a one-line description may ask for.
//!
//! hwloc's syntax is a list of levels, large to small, each a type and how
//! many of it are in one of the level above: `package:4 die:2 core:6 pu:1`.
//! Attributes stand in parentheses behind a level and memory in brackets;
//! hwloc reads those. This module reads the counts alone, before hwloc sees
//! the text: hwloc builds whatever it is asked for, object by object.

/// The most logical CPUs that a description may ask for: what Linux can run
/// at most (`CONFIG_NR_CPUS` on x86-64). hwloc's own work grows with the square
/// of this; it takes seconds here, and minutes beyond.
pub(crate) const CPUS_MAX: u64 = 8_192;
/// The longest description.
const LENGTH_MAX: usize = 4_096;

/// Checks the counts and the order of a description, and returns it complete:
/// hwloc wants `pu` at the end, and one hardware thread a core goes without
/// saying.
///
/// # Errors
/// One line that says what is wrong, without the description itself.
pub(crate) fn check(description: &str) -> Result<String, String> {
    if description.len() > LENGTH_MAX {
        return Err(format!(
            "it is {} bytes long, the most is {LENGTH_MAX}",
            description.len()
        ));
    }
    if let Some(odd) = description
        .chars()
        .find(|c| !c.is_ascii() || (c.is_ascii_control() && !c.is_ascii_whitespace()))
    {
        return Err(format!("it holds the character '{}'", odd.escape_debug()));
    }
    let levels = levels(description)?;
    if levels.is_empty() {
        return Err("it names no level such as core:4".to_owned());
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
                "it asks for more than {CPUS_MAX} CPUs at '{level}'"
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

/// The rank of a logical CPU.
const PU: usize = 3;

/// Large to small, the levels whose order is the same everywhere; the others
/// (caches, groups, NUMA nodes) may stand anywhere above the cores.
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

/// Whether the level is a bare count, whose type hwloc chooses.
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
                return Err(format!("'{level}' cannot be within '{larger}'"));
            }
            _ => above = Some((level, rank)),
        }
    }
    Ok(())
}

/// The levels without their attributes, and whether each is attached memory.
fn levels(description: &str) -> Result<Vec<(String, bool)>, String> {
    let mut levels = vec![(String::new(), false)];
    let (mut attributes, mut memory) = (false, false);
    for c in description.chars() {
        match c {
            '(' if !attributes => attributes = true,
            ')' if attributes => attributes = false,
            '[' if !attributes && !memory => memory = true,
            ']' if !attributes && memory => memory = false,
            '(' | ')' | '[' | ']' => return Err(format!("its '{c}' has no partner")),
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
        return Err("a parenthesis or bracket stays open".to_owned());
    }
    levels.retain(|(level, _)| !level.is_empty());
    Ok(levels)
}

/// How many a level asks for: `core:4`, or a bare `4`; attached memory may
/// leave its count out.
fn count(level: &str) -> Result<u64, String> {
    let digits = match level.split_once(':') {
        Some((_, digits)) => digits,
        None if is_bare(level) => level,
        None => return Err(format!("the level '{level}' has no count, as in {level}:2")),
    };
    match digits.parse::<u64>() {
        Ok(0) => Err(format!("the level '{level}' asks for none")),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("'{digits}' in '{level}' is not a count")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_hwloc_documents() {
        for description in [
            "package:4 die:2 core:6 pu:1",
            "2 4 1",
            "numa:2 package:1 l3:2(size=32MB) l2:4 core:1 pu:2",
            "(memory=1GB) package:2 [numa:1(memory=8GB)] core:8 pu:2(indexes=0,8)",
        ] {
            assert_eq!(check(description), Ok(description.to_owned()));
        }
    }

    #[test]
    fn one_hardware_thread_a_core_goes_without_saying() {
        assert_eq!(check("package:2 core:4").unwrap(), "package:2 core:4 pu:1");
        assert_eq!(check("package:2 l3:4").unwrap(), "package:2 l3:4 pu:1");
        assert_eq!(check("2 4").unwrap(), "2 4");
    }

    #[test]
    fn says_what_is_wrong() {
        for (description, reason) in [
            ("", "it names no level"),
            ("  ", "it names no level"),
            ("package:0", "the level 'package:0' asks for none"),
            ("core:99999999", "more than 8192 CPUs at 'core:99999999'"),
            ("core:99999999999999999999", "is not a count"),
            ("package:64 core:128 pu:2", "more than 8192 CPUs at 'pu:2'"),
            ("package", "the level 'package' has no count"),
            ("package: core:2", "'' in 'package:' is not a count"),
            ("core:-1", "'-1' in 'core:-1' is not a count"),
            (
                "core:4 package:2 pu:1",
                "'package:2' cannot be within 'core:4'",
            ),
            ("core:4 core:2", "'core:2' cannot be within 'core:4'"),
            ("core:2(size=3", "stays open"),
            ("core:2)", "its ')' has no partner"),
            ("[numa:2 core:2", "stays open"),
            ("core:2\0", "the character '\\0'"),
            ("corée:2", "the character 'é'"),
        ] {
            let said = check(description).unwrap_err();
            assert!(said.contains(reason), "{description}: {said}");
        }
        assert!(
            check(&"core:1 ".repeat(1000))
                .unwrap_err()
                .contains("bytes long")
        );
    }
}

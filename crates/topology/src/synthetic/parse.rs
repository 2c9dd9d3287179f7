// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a one-line description into levels. The first error is returned, with its position.

use super::generic::{self, GENERIC};
use super::indexes;
use super::level::{Attributes, CPUS_MAX, LENGTH_MAX, Level, LevelType, Levels, at};
use super::numbers::{count, size};
use crate::error::quoted;

/// Maximum number of levels, as in hwloc.
const LEVELS_MAX: usize = 126;

/// Maximum depth of brackets; hwloc's memory has one memory-side cache in front of a NUMA node.
const BRACKETS_MAX: usize = 8;

/// Maximum number of notes on one description.
const NOTES_MAX: usize = 8;

/// The names of types in lower case, each with the length of its shortest abbreviation.
const NAMES: [(&str, usize, LevelType); 13] = [
    ("package", 2, LevelType::Package),
    ("socket", 2, LevelType::Package),
    ("die", 2, LevelType::Die),
    ("numanode", 2, LevelType::NumaNode),
    ("node", 2, LevelType::NumaNode),
    ("group", 2, LevelType::Group),
    ("tile", 4, LevelType::Group),
    ("module", 6, LevelType::Group),
    ("cluster", 7, LevelType::Group),
    ("core", 2, LevelType::Core),
    ("pu", 2, LevelType::Pu),
    ("machine", 2, LevelType::Machine),
    ("memcache", 4, LevelType::MemoryCache),
];

/// Names that are proposed for a misspelt name.
const PROPOSED: [&str; 18] = [
    "cache", "machine", "package", "socket", "die", "numa", "node", "group", "tile", "module",
    "cluster", "l5", "l4", "l3", "l2", "l1", "core", "pu",
];

/// The levels in the order in which they may be nested, for the error of an unknown level.
const LEVELS: &str = "the levels are machine, package, die, numa, group (also tile, module and \
                      cluster), l5, l4, l3, l2, l1, cache, core and pu";

/// The attributes that have an effect, and one that is accepted without effect.
const ATTRIBUTES: [&str; 4] = ["size", "memory", "indexes", "memorysidecachesize"];

/// Returns the type with this name; case does not matter. A group may have a number: `Group0`.
pub(super) fn type_of(name: &str) -> Option<LevelType> {
    let name = name.to_ascii_lowercase();
    if name == "cache" {
        return Some(GENERIC);
    }
    if let Some(cache) = name.strip_prefix('l').and_then(cache_of) {
        return Some(cache);
    }
    let group = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if group == "group" {
        return Some(LevelType::Group);
    }
    NAMES
        .iter()
        .find(|(full, least, _)| name.len() >= *least && full.starts_with(&name))
        .map(|&(_, _, found)| found)
}

/// Returns the type of `3`, `3Cache`, `1d` or `2iCache`, in lower case.
fn cache_of(rest: &str) -> Option<LevelType> {
    let level = rest
        .chars()
        .next()?
        .to_digit(10)
        .filter(|n| (1..=5).contains(n))? as u8;
    let kind = &rest[1..];
    let (is_instruction, word) = match kind.strip_prefix('i') {
        Some(word) => (true, word),
        None => (false, kind.strip_prefix(['d', 'u']).unwrap_or(kind)),
    };
    let found = match is_instruction {
        true => LevelType::InstructionCache(level),
        false => LevelType::Cache(level),
    };
    "cache".starts_with(word).then_some(found)
}

/// Reads and checks a description.
pub(super) fn levels(text: &str) -> Result<Levels, String> {
    if text.len() > LENGTH_MAX {
        return Err(format!(
            "the description has {} bytes; the maximum is {LENGTH_MAX}",
            text.len()
        ));
    }
    let invalid = |c: &char| !c.is_ascii() || (c.is_ascii_control() && !c.is_ascii_whitespace());
    if let Some((position, odd)) = text.chars().enumerate().find(|(_, c)| invalid(c)) {
        let reason = format!(
            "the description contains the invalid character '{}'",
            odd.escape_debug()
        );
        return Err(at(position, reason));
    }
    let mut reader = Reader {
        text,
        position: 0,
        levels: Vec::new(),
        bare: 0,
        attached: Attributes::default(),
        positions: vec![0],
        notes: Vec::new(),
    };
    reader.read()?;
    reader.finish()
}

/// The position in a description, and the levels before the position.
struct Reader<'a> {
    /// ASCII.
    text: &'a str,
    position: usize,
    levels: Vec<Level>,
    /// Number of levels without a type.
    bare: usize,
    /// The attributes of the attached NUMA nodes; only the last `indexes=` counts.
    attached: Attributes,
    /// The position of each level.
    positions: Vec<usize>,
    /// The parts of the description that have no effect.
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    /// Returns the text up to the first character that `end` matches, and moves behind the text.
    fn take(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(end).unwrap_or(rest.len())];
        self.position += taken.len();
        taken
    }

    fn skip_spaces(&mut self) {
        self.take(|c| !c.is_ascii_whitespace());
    }

    /// Moves behind a character, if it is the next one.
    fn skip(&mut self, wanted: char) -> bool {
        let found = self.rest().starts_with(wanted);
        self.position += usize::from(found);
        found
    }

    fn read(&mut self) -> Result<(), String> {
        self.levels.push(Level {
            level_type: LevelType::Machine,
            width: 1,
            attributes: Attributes::default(),
            attached: Vec::new(),
            numbers: None,
        });
        self.skip_spaces();
        if self.rest().starts_with('(') {
            self.attributes(LevelType::Machine)?;
        }
        loop {
            self.skip_spaces();
            match self.rest().chars().next() {
                None => return Ok(()),
                Some('[') => self.attach(1)?,
                Some(bracket @ ('(' | ')' | ']')) => {
                    let reason = format!("the bracket '{bracket}' has no matching bracket");
                    return Err(at(self.position, reason));
                }
                Some(_) => self.level()?,
            }
        }
    }

    /// Reads `[NUMANode(memory=8GB)]` and attaches the memory to the last level. A memory-side cache
    /// may be in the same bracket, in front of its node: `[MemCache(size=16GB) NUMANode]`, also with
    /// brackets of their own for the nodes behind the cache.
    fn attach(&mut self, depth: usize) -> Result<(), String> {
        let start = self.position;
        self.skip('[');
        if !self.rest().contains(']') {
            return Err(at(start, "the bracket '[' is not closed"));
        }
        if depth > BRACKETS_MAX {
            let reason = format!("the brackets are nested more than {BRACKETS_MAX} levels deep");
            return Err(at(start, reason));
        }
        self.skip_spaces();
        if self.rest().starts_with(']') {
            let reason = "the brackets are empty; give memory such as [NUMANode(memory=8GB)]";
            return Err(at(start, reason));
        }
        loop {
            self.skip_spaces();
            match self.rest().chars().next() {
                Some(']') => {
                    self.skip(']');
                    return Ok(());
                }
                Some('[') => self.attach(depth + 1)?,
                Some(_) => self.attached_memory()?,
                None => return Err(at(self.position, "']' is missing after attached memory")),
            }
        }
    }

    /// Reads `NUMANode(memory=8GB)` or `MemCache(size=16GB)`.
    fn attached_memory(&mut self) -> Result<(), String> {
        let name_at = self.position;
        let name = self.take(|c| "()[]:".contains(c) || c.is_ascii_whitespace());
        let found = match type_of(name) {
            Some(found @ (LevelType::NumaNode | LevelType::MemoryCache)) => found,
            _ => {
                let reason = format!(
                    "'{}' cannot be attached in brackets; only NUMANode and MemCache can",
                    quoted(name)
                );
                return Err(at(name_at, reason));
            }
        };
        if self.skip(':') {
            let count_at = self.position;
            let count = self.take(|c| "()[]".contains(c) || c.is_ascii_whitespace());
            if count != "1" {
                let reason = format!(
                    "'{}' is not a valid count of attached memory; repeat the brackets for \
                     further nodes",
                    quoted(count)
                );
                return Err(at(count_at, reason));
            }
        }
        let mut attributes = Attributes::default();
        if self.rest().starts_with('(') {
            attributes = self.attributes(found)?;
        }
        if found == LevelType::NumaNode {
            if attributes.indexes.is_some() {
                self.attached.indexes = attributes.indexes;
            }
            if let Some(level) = self.levels.last_mut() {
                level.attached.push(attributes.bytes.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Reads `core:4(…)`.
    fn level(&mut self) -> Result<(), String> {
        let start = self.position;
        let word = self.take(|c| "()[]".contains(c) || c.is_ascii_whitespace());
        let (level_type, digits, digits_at) = match word.split_once(':') {
            Some((name, digits)) => (
                self.typed(name, word, start)?,
                digits,
                start + name.len() + 1,
            ),
            None if word.starts_with(|c: char| c.is_ascii_digit()) => {
                self.bare += 1;
                (LevelType::Pu, word, start)
            }
            None if type_of(word) == Some(LevelType::Machine) => (LevelType::Machine, "1", start),
            None => {
                self.typed(word, word, start)?;
                let reason = format!("the level '{0}' has no count, as in {0}:2", quoted(word));
                return Err(at(start, reason));
            }
        };
        let count = count(digits, word).map_err(|reason| at(digits_at, reason))?;
        let mut attributes = Attributes::default();
        if self.rest().starts_with('(') {
            attributes = self.attributes(level_type)?;
        }
        if level_type == LevelType::Machine {
            return match self.levels.len() == 1 && count == 1 {
                true => Ok(()),
                false => Err(at(
                    start,
                    "the machine must be the first level, with the count 1",
                )),
            };
        }
        let above = self.levels.last().map_or(1, |level| level.width);
        let width = above.saturating_mul(count);
        if width > CPUS_MAX {
            let reason = format!(
                "the description has more than {CPUS_MAX} CPUs at the level '{}'",
                quoted(word)
            );
            return Err(at(start, reason));
        }
        if self.levels.len() > LEVELS_MAX {
            let reason = format!("the description has more than {LEVELS_MAX} levels");
            return Err(at(start, reason));
        }
        self.levels.push(Level {
            level_type,
            width,
            attributes,
            attached: Vec::new(),
            numbers: None,
        });
        self.positions.push(start);
        Ok(())
    }

    /// Returns the type of a level, or an error with the closest name.
    fn typed(&self, name: &str, word: &str, start: usize) -> Result<LevelType, String> {
        match type_of(name) {
            Some(LevelType::MemoryCache) => Err(at(
                start,
                "a memory-side cache cannot be a level; attach it in brackets",
            )),
            Some(found) => Ok(found),
            None => {
                let name = name.to_ascii_lowercase();
                let hint = match usher_model::closest_name(&name, PROPOSED) {
                    Some(closest) => format!("a similar level exists: {closest}"),
                    None => LEVELS.to_owned(),
                };
                let reason = format!("the level '{}' is unknown; {hint}", quoted(word));
                Err(at(start, reason))
            }
        }
    }

    /// Reads attributes in parentheses, separated by spaces.
    fn attributes(&mut self, level_type: LevelType) -> Result<Attributes, String> {
        let start = self.position;
        let mut found = Attributes::default();
        self.skip('(');
        if !self.rest().contains(')') {
            return Err(at(start, "the parenthesis '(' is not closed"));
        }
        loop {
            self.skip_spaces();
            if self.skip(')') {
                return Ok(found);
            }
            let item_at = self.position;
            let item = self.take(|c| c == ')' || c.is_ascii_whitespace());
            let Some((name, value)) = item.split_once('=') else {
                let reason = format!(
                    "'{}' is not a valid attribute; an attribute has a name and a value, such as \
                     size=32MB",
                    quoted(item)
                );
                return Err(at(item_at, reason));
            };
            let value_at = item_at + name.len() + 1;
            match name {
                "size" if level_type.is_cache() => found.bytes = Some(size(name, value, value_at)?),
                "memory" if !level_type.is_cache() => {
                    found.bytes = Some(size(name, value, value_at)?);
                }
                "memorysidecachesize" => drop(size(name, value, value_at)?),
                "indexes" if value.is_empty() => {
                    let reason = "the attribute 'indexes=' has no value; give numbers such as 0,1";
                    return Err(at(value_at, reason));
                }
                "indexes" => found.indexes = Some((value.to_owned(), value_at)),
                // Later versions of hwloc may write attributes that are unknown here, and hwloc itself
                // ignores unknown attributes. A name close to a known name is rather a typing error.
                "size" | "memory" => {
                    let reason = format!(
                        "the attribute '{name}' does not apply to this level; 'size' is for caches, \
                         'memory' for NUMA nodes and other levels"
                    );
                    return Err(at(item_at, reason));
                }
                _ => match usher_model::closest_name(name, ATTRIBUTES) {
                    Some(closest) => {
                        let reason = format!(
                            "the attribute '{}' does not exist for this level; a similar attribute \
                             exists: {closest}",
                            quoted(name)
                        );
                        return Err(at(item_at, reason));
                    }
                    None => self.note(at(
                        item_at,
                        format!(
                            "the attribute '{}' is unknown and has no effect",
                            quoted(name)
                        ),
                    )),
                },
            }
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }

    /// Checks the levels against one another and expands `indexes=`.
    fn finish(mut self) -> Result<Levels, String> {
        let end = self.text.len();
        if self.levels.len() == 1 {
            return Err("the description contains no level such as core:4".to_owned());
        }
        match self.bare {
            0 => self.append_threads(),
            _ if self.bare + 1 == self.levels.len() => self.name_bare_levels(),
            _ => {
                let reason = "levels with and without a type cannot be mixed";
                return Err(at(end, reason));
            }
        }
        generic::number(&mut self.levels, &self.positions)?;
        self.order()?;
        self.number_objects()
    }

    /// Appends `pu:1`, one hardware thread per core, if the last level is not `pu`.
    fn append_threads(&mut self) {
        let last = self
            .levels
            .last()
            .map(|level| (level.level_type, level.width));
        if let Some((level_type, width)) = last
            && level_type != LevelType::Pu
        {
            self.levels.push(Level {
                level_type: LevelType::Pu,
                width,
                attributes: Attributes::default(),
                attached: Vec::new(),
                numbers: None,
            });
            self.positions.push(self.text.len());
        }
    }

    /// Gives types to levels without types, as hwloc does. The types by priority: packages, NUMA
    /// nodes, cores, L2, L1, L3 and L1i caches, groups.
    fn name_bare_levels(&mut self) {
        let has_attached = self.levels.iter().any(|level| !level.attached.is_empty());
        let mut left = self.levels.len() - 2;
        let mut reserve = |wanted: usize| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let nodes = reserve(usize::from(!has_attached));
        let packages = reserve(1);
        let cores = reserve(1);
        let caches = reserve(4);
        let caches = match caches {
            0 => &[][..],
            1 => &[LevelType::Cache(2)][..],
            2 => &[LevelType::Cache(2), LevelType::Cache(1)],
            3 => &[
                LevelType::Cache(3),
                LevelType::Cache(2),
                LevelType::Cache(1),
            ],
            _ => &[
                LevelType::Cache(3),
                LevelType::Cache(2),
                LevelType::Cache(1),
                LevelType::InstructionCache(1),
            ],
        };
        let types = std::iter::repeat_n(LevelType::Group, left)
            .chain(std::iter::repeat_n(LevelType::Package, packages))
            .chain(std::iter::repeat_n(LevelType::NumaNode, nodes))
            .chain(caches.iter().copied())
            .chain(std::iter::repeat_n(LevelType::Core, cores))
            .chain([LevelType::Pu]);
        for (level, level_type) in self.levels[1..].iter_mut().zip(types) {
            level.level_type = level_type;
        }
    }

    /// Checks that each type except groups and caches occurs at most once, that packages, dies,
    /// cores and CPUs are in this order, and that NUMA nodes are either a level or attached.
    fn order(&self) -> Result<(), String> {
        let rank = |level: &Level| match level.level_type {
            LevelType::Package => Some(0),
            LevelType::Die => Some(1),
            LevelType::Core => Some(2),
            LevelType::Pu => Some(3),
            _ => None,
        };
        let word = |index: usize| {
            let rest = &self.text[self.positions[index]..];
            let end = rest.find(|c: char| "()[]".contains(c) || c.is_ascii_whitespace());
            quoted(&rest[..end.unwrap_or(rest.len())])
        };
        let mut above: Option<(usize, usize)> = None;
        let mut nodes = 0;
        for (index, level) in self.levels.iter().enumerate() {
            nodes += usize::from(level.level_type == LevelType::NumaNode);
            if nodes > 1 {
                let reason = "the description has two levels of NUMA nodes";
                return Err(at(self.positions[index], reason));
            }
            let inside_cpus = above.is_some_and(|(rank, _)| rank == 3);
            let found = rank(level);
            if let Some((larger, of)) = above
                && (inside_cpus || found.is_some_and(|rank| larger >= rank))
            {
                let reason = format!(
                    "the level '{}' cannot be inside the level '{}'",
                    word(index),
                    word(of)
                );
                return Err(at(self.positions[index], reason));
            }
            above = found.map(|rank| (rank, index)).or(above);
        }
        let attached = self.levels.iter().any(|level| !level.attached.is_empty());
        match nodes > 0 && attached {
            true => Err("NUMA nodes cannot be both a level and attached in brackets".to_owned()),
            false => Ok(()),
        }
    }

    fn number_objects(mut self) -> Result<Levels, String> {
        let attached: u64 = self
            .levels
            .iter()
            .map(|level| level.width * level.attached.len() as u64)
            .sum();
        if attached > CPUS_MAX {
            return Err(format!(
                "the description attaches more than {CPUS_MAX} NUMA nodes"
            ));
        }
        for index in 1..self.levels.len() {
            let level = &self.levels[index];
            if let Some((text, position)) = &level.attributes.indexes {
                let numbers = indexes::expand(text, *position, level.width, &self.levels)?;
                self.levels[index].numbers = Some(numbers);
            }
        }
        let attached_numbers = match &self.attached.indexes {
            Some((text, position)) => {
                Some(indexes::expand(text, *position, attached, &self.levels)?)
            }
            None => None,
        };
        Ok(Levels {
            all: self.levels,
            attached_numbers,
            notes: self.notes,
        })
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expands the attribute `indexes=`: the operating system's numbers of the objects of a level, in
//! the order of the description. hwloc has three forms:
//!
//! 1. a list: `0,4,1,5`;
//! 2. loops: `4*4:2*2:1*2`. A loop `step*count` takes every `step`-th object, `count` times. The
//!    first loop gives the lowest digit of a number. One missing loop of step 1 is added;
//! 3. loops by type: `core:package`, with one loop for each named level.
//!
//! A number that occurs twice, a wrong count, and a loop that does not fit are errors with their
//! positions.

use usher_model::cpuset::CPU_ID_MAX;

use super::level::{Level, at};
use super::parse;
use crate::error::quoted;

/// A loop over the objects: the digit `(object / step) % count`.
#[derive(Debug, Clone, Copy)]
struct Loop {
    step: u64,
    count: u64,
}

/// Returns the numbers of `total` objects.
pub(super) fn expand(
    text: &str,
    position: usize,
    total: u64,
    levels: &[Level],
) -> Result<Vec<u32>, String> {
    let is_list = text.bytes().all(|b| b.is_ascii_digit() || b == b',');
    let numbers = match is_list {
        true => list(text, position, total)?,
        false => loops(text, position, total, levels)?,
    };
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(at(
            position,
            format!("indexes= gives the number {} to two objects", pair[0]),
        )),
        None => Ok(numbers),
    }
}

fn list(text: &str, position: usize, total: u64) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    let mut start = position;
    for part in text.split(',') {
        // The caller has checked that the text consists of digits and commas.
        match part.parse::<u32>() {
            Ok(number) if number <= CPU_ID_MAX => numbers.push(number),
            _ => {
                let reason = format!(
                    "'{}' is not a valid number in indexes=; the numbers are 0 to {CPU_ID_MAX}",
                    quoted(part)
                );
                return Err(at(start, reason));
            }
        }
        start += part.len() + 1;
    }
    match numbers.len() as u64 == total {
        true => Ok(numbers),
        false => Err(at(
            position,
            format!("indexes= has {} numbers for {total} objects", numbers.len()),
        )),
    }
}

fn loops(text: &str, position: usize, total: u64, levels: &[Level]) -> Result<Vec<u32>, String> {
    let explicit = text.starts_with(|c: char| !c.is_ascii_alphabetic());
    let mut loops = match explicit {
        true => explicit_loops(text, position)?,
        false => typed_loops(text, position, total, levels)?,
    };
    let covered = loops
        .iter()
        .try_fold(1u64, |product, it| product.checked_mul(it.count));
    let smallest = loops.iter().map(|it| it.step).min();
    match covered {
        Some(covered) if covered == total => {}
        Some(covered) if total.is_multiple_of(covered) && smallest == Some(total / covered) => {
            loops.push(Loop {
                step: 1,
                count: total / covered,
            });
        }
        _ => {
            let reason = format!("the loops of indexes= do not number {total} objects, each once");
            return Err(at(position, reason));
        }
    }
    let number = |object: u64| {
        let mut number = 0;
        let mut factor = 1;
        for it in &loops {
            number += object / it.step % it.count * factor;
            factor *= it.count;
        }
        number as u32
    };
    Ok((0..total).map(number).collect())
}

fn explicit_loops(text: &str, position: usize) -> Result<Vec<Loop>, String> {
    let mut loops = Vec::new();
    let mut start = position;
    for part in text.split(':') {
        let pair = part.split_once('*').and_then(|(step, count)| {
            let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
            let number = |text: &str| text.parse::<u64>().ok().filter(|_| digits(text));
            Some((number(step)?, number(count)?))
        });
        match pair {
            Some((step, count)) if step > 0 && count > 0 => loops.push(Loop { step, count }),
            _ => {
                let reason = format!(
                    "'{}' is not a valid loop in indexes=, such as 4*2",
                    quoted(part)
                );
                return Err(at(start, reason));
            }
        }
        start += part.len() + 1;
    }
    Ok(loops)
}

fn typed_loops(
    text: &str,
    position: usize,
    total: u64,
    levels: &[Level],
) -> Result<Vec<Loop>, String> {
    let mut depths = Vec::new();
    let mut start = position;
    for part in text.split(':') {
        let unused = |(depth, level): &(usize, &Level)| {
            *depth > 0 && !depths.contains(depth) && parse::type_of(part) == Some(level.level_type)
        };
        match levels.iter().enumerate().find(unused) {
            Some((depth, _)) => depths.push(depth),
            _ => {
                let reason = format!(
                    "'{}' in indexes= must name a level of the description, each at most once",
                    quoted(part)
                );
                return Err(at(start, reason));
            }
        }
        start += part.len() + 1;
    }
    let mut loops = Vec::new();
    for &depth in &depths {
        let above = depths.iter().copied().filter(|&d| d < depth).max();
        let width = levels[depth].width;
        let around = above.map_or(1, |above| levels[above].width);
        if !total.is_multiple_of(width) {
            let reason = "a level in indexes= is smaller than the numbered objects";
            return Err(at(position, reason));
        }
        loops.push(Loop {
            step: total / width,
            count: width / around,
        });
    }
    Ok(loops)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The true progress of a calibration program, which the program writes to its standard output: a
//! line `NANOSECONDS WORK` every 20 ms, with the monotonic time and the work done since the start.

/// The work of one run over time.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkTrace {
    /// Monotonic time in nanoseconds, ascending, and work done.
    points: Vec<(u64, u64)>,
}

impl WorkTrace {
    /// Parses the output of a calibration program; `None` if the output has another form. An
    /// incomplete last line is ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let points: Option<Vec<(u64, u64)>> = (complete.lines())
            .map(|line| {
                let (at_ns, work) = line.split_once(' ')?;
                Some((at_ns.parse().ok()?, work.parse().ok()?))
            })
            .collect();
        let points = points?;
        let ascends = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        points.windows(2).all(ascends).then_some(Self { points })
    }

    /// Returns the work done until a time, interpolated between two lines; `None` outside the trace.
    pub fn work_at(&self, at_ns: u64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < at_ns);
        let &(end_ns, end) = self.points.get(after)?;
        if end_ns == at_ns {
            return Some(end as f64);
        }
        let &(start_ns, start) = self.points.get(after.checked_sub(1)?)?;
        let part = (at_ns - start_ns) as f64 / (end_ns - start_ns) as f64;
        Some(start as f64 + part * (end - start) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_interpolated_inside_the_trace_only() {
        let trace = WorkTrace::parse("100 0\n200 10\n400 20\n500 4").unwrap();
        for (at_ns, work) in [
            (100, 0.0),
            (150, 5.0),
            (200, 10.0),
            (300, 15.0),
            (400, 20.0),
        ] {
            assert_eq!(trace.work_at(at_ns), Some(work));
        }
        assert_eq!(trace.work_at(99), None);
        assert_eq!(trace.work_at(401), None, "the last line is incomplete");
        assert_eq!(WorkTrace::parse("").unwrap().work_at(0), None);
    }

    #[test]
    fn rejects_other_output() {
        for text in [
            "x\n",
            "1\n",
            "1 2 3\n",
            "-1 2\n",
            "2 1\n1 2\n",
            "1 2\n2 1\n",
            "1 1\n1 1\n",
        ] {
            assert_eq!(WorkTrace::parse(text), None, "{text:?}");
        }
    }
}

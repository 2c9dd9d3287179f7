// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws traces as SVG pictures (paper 5, figure 13): a row for each worker, time from left to
//! right, and each task as a bar in the colour of its group. Neighbouring tasks of one colour that
//! would be narrower than half a pixel are drawn as one bar, which keeps pictures of many small
//! tasks small. A picture is 1200 pixels wide and 34 pixels high per worker; its legend shows at
//! most 12 groups. Drawing takes O(n log n) for n tasks, and the whole picture is in memory.

use std::io::{self, Write};

use svg::Document;
use svg::node::Node as _;
use svg::node::Text;
use svg::node::element::Element;

use super::{TaskSpan, Trace};
use crate::sort;

/// The kind of groups that colours represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorBy {
    /// Temporal groups. In a good order, the bars of all workers have the same colour at any time.
    T,
    /// Spatial groups. In a good order, the colour in a worker's row changes rarely.
    S,
}

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 40.0;
const ROW: f64 = 28.0;
const ROW_GAP: f64 = 6.0;
const BELOW: f64 = 40.0;
/// Height of the legend of group colours, below the time axis.
const LEGEND: f64 = 26.0;
const LEGEND_GROUPS: usize = 12;
const LEGEND_WIDTH: f64 = 80.0;
/// Width in pixels below which a task and its neighbours of the same colour are drawn as one bar.
/// Such narrow tasks could not be distinguished, and a video frame has tens of thousands of tasks.
const NARROW: f64 = 0.5;

impl Trace {
    /// Writes an SVG picture: one row per worker, time from left to right, each task in the colour
    /// of its group. Tasks without a group are grey. The legend shows the first twelve groups.
    ///
    /// # Errors
    /// If `to` returns an error.
    pub fn write_svg(&self, color_by: ColorBy, mut to: impl Write) -> io::Result<()> {
        svg::write(&mut to, &self.picture(color_by))
    }

    fn picture(&self, color_by: ColorBy) -> Document {
        let begin = self
            .spans
            .iter()
            .map(|span| span.start_ns)
            .min()
            .unwrap_or(0);
        let end = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let axis = Axis {
            begin,
            ns: end.saturating_sub(begin).max(1),
        };
        let rows_end = TOP + self.workers as f64 * (ROW + ROW_GAP);
        let (width, height) = (px(WIDTH), px(rows_end + BELOW + LEGEND));
        let frame = [
            ("viewBox", format!("0 0 {width} {height}")),
            ("width", width),
            ("height", height),
            ("font-family", "sans-serif".to_owned()),
            ("font-size", "13".to_owned()),
        ];
        let mut picture = Document::new();
        for (name, value) in frame {
            picture.assign(name, value);
        }
        let background = [("width", "100%"), ("height", "100%"), ("fill", "#fff")];
        let background = background.map(|(name, value)| (name, value.to_owned()));
        picture = picture.add(element("rect", background));
        picture = picture.add(text(LEFT, TOP - 16.0, &self.title(color_by)));
        for (worker, row) in self.rows().iter().enumerate() {
            let y = TOP + worker as f64 * (ROW + ROW_GAP);
            picture = picture
                .add(text(8.0, y + ROW * 0.65, &format!("worker {worker}")))
                .add(self.draw_row(row, y, color_by, axis));
        }
        let picture = axis.add_to(picture, rows_end);
        picture.add(self.legend(color_by, rows_end + BELOW))
    }

    /// Returns the start of each span of a worker, and the complement of the span's index, in the
    /// order in which the spans are drawn. A task that encloses other tasks is drawn before them, so
    /// that they stay visible. Of tasks with the same start, it has the highest index, because the
    /// spans of a worker are sorted by their ends.
    fn rows(&self) -> Vec<Vec<(usize, usize)>> {
        let mut rows = vec![Vec::new(); self.workers];
        for (index, span) in self.spans.iter().enumerate() {
            if let Some(row) = rows.get_mut(span.worker) {
                row.push((span.start_ns as usize, !index));
            }
        }
        rows.iter_mut().for_each(|row| sort::pairs(row));
        rows
    }

    fn title(&self, color_by: ColorBy) -> String {
        let counted = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            _ => format!("{count} {noun}s"),
        };
        let what = match color_by {
            ColorBy::T => "temporal groups (T)",
            ColorBy::S => "spatial groups (S)",
        };
        let (tasks, workers) = (
            counted(self.spans.len(), "task"),
            counted(self.workers, "worker"),
        );
        format!("{tasks} on {workers}, coloured by {what}")
    }

    /// Draws the legend: the colour of each group.
    fn legend(&self, color_by: ColorBy, y: f64) -> Element {
        let numbers = self.spans.iter().map(|span| number(span, color_by));
        let mut numbers: Vec<u32> = numbers.collect();
        sort::by_key(&mut numbers, &u64::from);
        numbers.dedup();
        let mut legend = Element::new("g");
        for (at, &number) in numbers.iter().take(LEGEND_GROUPS).enumerate() {
            let x = LEFT + at as f64 * LEGEND_WIDTH;
            let label = match (number, color_by) {
                (0, _) => "no group".to_owned(),
                (number, ColorBy::T) => format!("T {number}"),
                (number, ColorBy::S) => format!("S {number}"),
            };
            let dot = [
                ("cx", px(x + 5.0)),
                ("cy", px(y + 5.0)),
                ("r", "5".to_owned()),
                ("fill", color(number)),
            ];
            legend.append(element("circle", dot));
            legend.append(text(x + 14.0, y + 10.0, &label));
        }
        if numbers.len() > LEGEND_GROUPS {
            let x = LEFT + LEGEND_GROUPS as f64 * LEGEND_WIDTH;
            let label = format!("… ({} groups in all)", numbers.len());
            legend.append(text(x, y + 10.0, &label));
        }
        legend
    }

    fn draw_row(&self, row: &[(usize, usize)], y: f64, color_by: ColorBy, axis: Axis) -> Element {
        let mut group = Element::new("g");
        let mut open: Option<Bar> = None;
        for &(_, index) in row {
            let bar = Bar::of(&self.spans[!index], color_by, axis);
            open = match open {
                Some(before) if before.takes(&bar) => Some(before.with(&bar)),
                Some(before) => {
                    group.append(before.draw(y));
                    Some(bar)
                }
                None => Some(bar),
            };
        }
        if let Some(last) = open {
            group.append(last.draw(y));
        }
        group
    }
}

fn number(span: &TaskSpan, color_by: ColorBy) -> u32 {
    match color_by {
        ColorBy::T => span.groups.t,
        ColorBy::S => span.groups.s,
    }
}

/// A bar that represents one or more tasks of one group.
#[derive(Clone, Copy)]
struct Bar {
    from: f64,
    to: f64,
    number: u32,
    tasks: u64,
}

impl Bar {
    fn of(span: &TaskSpan, color_by: ColorBy, axis: Axis) -> Self {
        Self {
            from: axis.x(span.start_ns),
            to: axis.x(span.end_ns),
            number: number(span, color_by),
            tasks: 1,
        }
    }

    fn takes(&self, next: &Self) -> bool {
        let is_narrow = next.to - next.from < NARROW && next.from - self.to < NARROW;
        self.number == next.number && is_narrow
    }

    fn with(self, next: &Self) -> Self {
        Self {
            // The next bar may end before this bar, because a task may enclose other tasks.
            to: self.to.max(next.to),
            tasks: self.tasks + next.tasks,
            ..self
        }
    }

    fn draw(self, y: f64) -> Element {
        let tasks = match self.tasks {
            1 => "1 task".to_owned(),
            tasks => format!("{tasks} tasks"),
        };
        let label = format!("group {}, {tasks}", self.number);
        let mut bar = element(
            "rect",
            [
                ("x", px(self.from)),
                ("y", px(y)),
                ("width", px((self.to - self.from).max(0.2))),
                ("height", px(ROW)),
                ("fill", color(self.number)),
            ],
        );
        let mut title = Element::new("title");
        title.append(Text::new(label));
        bar.append(title);
        bar
    }
}

/// Returns the colour of a group. The hues of consecutive numbers differ by the golden angle.
fn color(number: u32) -> String {
    match number {
        0 => "#9a9a9a".to_owned(),
        _ => {
            let hue = f64::from(number) * 137.508 % 360.0;
            format!("hsl({hue:.0},65%,50%)")
        }
    }
}

/// Formats a coordinate with at most two decimals.
fn px(points: f64) -> String {
    ((points * 100.0).round() / 100.0).to_string()
}

/// Creates an element. The methods of the elements of the crate svg are generic functions, of which
/// the library would contain an instance for each type of a value.
fn element<const N: usize>(name: &str, attributes: [(&'static str, String); N]) -> Element {
    element_of(name, &mut attributes.into_iter())
}

fn element_of(name: &str, attributes: &mut dyn Iterator<Item = (&'static str, String)>) -> Element {
    let mut element = Element::new(name);
    for (name, value) in attributes {
        element.assign(name, value);
    }
    element
}

fn text(x: f64, y: f64, words: &str) -> Element {
    let mut text = element("text", [("x", px(x)), ("y", px(y))]);
    text.append(Text::new(words));
    text
}

/// The time axis, from left to right.
#[derive(Clone, Copy)]
struct Axis {
    begin: u64,
    ns: u64,
}

impl Axis {
    fn x(self, ns: u64) -> f64 {
        let share = ns.saturating_sub(self.begin) as f64 / self.ns as f64;
        LEFT + share * (WIDTH - LEFT - 20.0)
    }

    /// Draws ticks at round times.
    fn add_to(self, mut picture: Document, y: f64) -> Document {
        let step = step_ns(self.ns);
        for tick in 0..=self.ns / step {
            let x = self.x(self.begin + tick * step);
            let line = [
                ("x1", px(x)),
                ("x2", px(x)),
                ("y1", px(y)),
                ("y2", px(y + 5.0)),
                ("stroke", "#000".to_owned()),
            ];
            let mut label = text(x, y + 20.0, &time(tick * step));
            label.assign("text-anchor", "middle".to_owned());
            picture = picture.add(element("line", line)).add(label);
        }
        picture
    }
}

/// Returns the distance of two ticks: a round time of which the whole time is five to ten times as
/// long.
fn step_ns(whole_ns: u64) -> u64 {
    let mut step = 1;
    while whole_ns / step > 50 {
        step *= 10;
    }
    match whole_ns / step {
        0..=10 => step,
        11..=20 => step * 2,
        _ => step * 5,
    }
}

fn time(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} µs", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Groups;

    fn trace(spans: &[(u64, u32, usize, u64, u64)]) -> Trace {
        let span = |&(task, t, worker, start_ns, end_ns): &(u64, u32, usize, u64, u64)| TaskSpan {
            task,
            groups: Groups::new(t, 1),
            worker,
            start_ns,
            end_ns,
        };
        Trace {
            workers: 2,
            spans: spans.iter().map(span).collect(),
            lost: 0,
        }
    }

    #[test]
    fn narrow_tasks_of_one_group_are_drawn_as_one() {
        let narrow = (0..9000).map(|task| (task, 1 + u32::from(task >= 4500), 0, task, task + 1));
        let narrow: Vec<_> = narrow.collect();
        let drawn = trace(&narrow).picture(ColorBy::T).to_string();
        // Expected are the background and one bar for each of the two temporal groups. In the
        // second picture there is one bar, because all tasks are in one spatial group.
        assert_eq!(drawn.matches("<rect").count(), 1 + 2);
        let drawn = trace(&narrow).picture(ColorBy::S).to_string();
        assert_eq!(drawn.matches("<rect").count(), 1 + 1);
    }

    #[test]
    fn wide_tasks_are_drawn_one_by_one() {
        let wide = [(1, 1, 0, 0, 500), (2, 1, 0, 500, 1000), (3, 0, 1, 0, 1000)];
        let drawn = trace(&wide).picture(ColorBy::T).to_string();
        assert_eq!(drawn.matches("<rect").count(), 1 + 3);
        assert!(drawn.contains("#9a9a9a") && drawn.contains("worker 1"));
    }

    #[test]
    fn the_legend_has_the_first_twelve_groups() {
        let of = |groups: u64| {
            let spans: Vec<_> = (0..groups)
                .map(|t| (t, t as u32, 0, t * 100, t * 100 + 90))
                .collect();
            trace(&spans).picture(ColorBy::T).to_string()
        };
        let few = of(3);
        assert!(few.contains("no group") && few.contains("T 2") && !few.contains('…'));
        assert_eq!(few.matches("<circle").count(), 3);
        assert_eq!(few.matches(&color(2)).count(), 2, "a task and the legend");
        let many = of(40);
        assert!(
            many.contains("T 11")
                && !many.contains("T 12")
                && many.contains("… (40 groups in all)")
        );
        assert_eq!(many.matches("<circle").count(), 12);
        let one = trace(&[(7, 1, 0, 0, 10)]).picture(ColorBy::S).to_string();
        assert!(one.contains("1 task on 2 workers") && one.contains("S 1"));
    }

    #[test]
    fn a_task_keeps_its_width_when_another_ran_inside_it() {
        let alone = [(1, 1, 0, 0, 1_000_000), (3, 1, 1, 0, 2_000_000)];
        let with_inner = [alone[0], (2, 1, 0, 200_000, 200_500), alone[1]];
        let width = |spans: &[_]| {
            let drawn = trace(spans).picture(ColorBy::T).to_string();
            let bar = drawn.split("<rect").find(|rect| rect.contains("hsl"));
            let (_, width) = bar.unwrap().split_once("width=").unwrap();
            width.split('"').nth(1).unwrap().to_owned()
        };
        assert_eq!(width(&with_inner), width(&alone));
    }

    #[test]
    fn a_span_that_ends_before_it_begins_is_drawn() {
        for spans in [
            &[(1, 1, 0, 10, 5)][..],
            &[(1, 1, 0, 10, 5), (2, 1, 0, 7, 9)],
        ] {
            let drawn = trace(spans).picture(ColorBy::T).to_string();
            assert!(drawn.contains("<rect"));
        }
    }

    #[test]
    fn times_of_ticks_are_round() {
        assert_eq!(step_ns(100), 10);
        assert_eq!(step_ns(1), 1);
        assert_eq!(step_ns(1_234_567), 200_000);
        assert!(
            trace(&[])
                .picture(ColorBy::T)
                .to_string()
                .contains("0 tasks")
        );
    }
}

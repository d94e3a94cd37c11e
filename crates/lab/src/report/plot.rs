//! A plot as SVG.
//!
//! | module | owns |
//! |---|---|
//! | `axis` | limits, ticks and labels of an axis |
//! | `look` | colours, markers and dashes |
//! | `layout` | where the parts of a picture stand |
//! | `canvas` | drawing |
//!
//! Owns: [`Plot`], its [`Series`] and what they may hold. Rules: a plot is legible in print, without
//! colours, and by a stranger who has only the picture. The paper's own figures are hollow and named
//! so, and stand only where the paper gives numbers. What was not measured stays a gap. Left out:
//! other formats than SVG.

mod axis;
mod canvas;
mod layout;
mod look;
#[cfg(test)]
mod tests;

use super::ReportError;
use axis::{Axis, Scale};
use canvas::Canvas;
use layout::Layout;

/// The value of a point that was not measured. A line is interrupted there.
pub const GAP: f64 = f64::NEG_INFINITY;
/// Begins the name of every series that is the paper's.
const PAPER: &str = "paper: ";

/// The axes of a plot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub is_log_x: bool,
    pub is_log_y: bool,
    /// Whether a logarithmic x axis has a place for 0, apart from the other values.
    pub has_zero_x: bool,
    /// Names instead of numbers along the x axis. The x of a point is then the index of its name.
    /// No line is drawn between names, and series stand side by side.
    pub names: Vec<String>,
}

/// The meaning of a series' points, which decides how they are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Markers with a line through them.
    #[default]
    Line,
    /// Markers alone.
    Points,
    /// The middles of a histogram's buckets, each of them, also the empty ones.
    Steps,
    /// The paper's points: hollow markers alone.
    Paper,
    /// Ranges that the paper gives, each as two opposite corners. A side may be infinite.
    PaperRange,
}

/// Points with a common name.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Least and greatest y of each point, or nothing at all.
    pub intervals: Vec<(f64, f64)>,
    pub kind: Kind,
}

impl Series {
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), points: points.into_iter().collect(), ..Series::default() }
    }

    /// Returns a series with intervals: each point's x, and its low, middle and high y.
    pub fn spread(name: impl Into<String>, points: impl IntoIterator<Item = (f64, [f64; 3])>) -> Series {
        let mut series = Series::new(name, []);
        for (x, [low, middle, high]) in points {
            series.points.push((x, middle));
            series.intervals.push((low, high));
        }
        series
    }

    /// Returns points that the paper gives.
    pub fn paper(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { kind: Kind::Paper, ..Series::new(format!("{PAPER}{name}"), points) }
    }

    /// Returns ranges of x and y that the paper gives.
    pub fn paper_ranges(name: &str, ranges: impl IntoIterator<Item = [(f64, f64); 2]>) -> Series {
        let corners = ranges.into_iter().flat_map(|[x, y]| [(x.0, y.0), (x.1, y.1)]);
        Series { kind: Kind::PaperRange, ..Series::paper(name, corners) }
    }

    pub fn of_kind(self, kind: Kind) -> Series {
        Series { kind, ..self }
    }
}

#[derive(Clone, Debug)]
pub struct Plot {
    /// Part of the file's name.
    pub name: String,
    /// The first line is the heading; others may explain the picture.
    pub title: String,
    /// Labels of the axes, with their units.
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
    pub style: Style,
}

impl Plot {
    pub fn to_svg(&self) -> Result<String, ReportError> {
        self.draw().map_err(|why| ReportError::Plot { name: self.name.clone(), why })
    }

    fn check(&self) -> Result<(), String> {
        for Series { name, points, intervals, kind } in &self.series {
            if !intervals.is_empty() && intervals.len() != points.len() {
                let (has, needs) = (intervals.len(), points.len());
                return Err(format!("series {name} has {has} intervals for {needs} points; give each point one"));
            }
            let is_bad = |value: f64| value.is_nan() || value.is_infinite() && *kind != Kind::PaperRange;
            let is_gap = |value: f64| value == GAP;
            let of_points = points.iter().any(|(x, y)| is_bad(*x) || is_bad(*y) && !is_gap(*y));
            if of_points || intervals.iter().any(|(low, high)| low.is_nan() || high.is_nan()) {
                return Err(format!("series {name} has a point that is not a number; leave it out or make it a gap"));
            }
            if points.iter().any(|(x, _)| !self.style.names.is_empty() && *x >= self.style.names.len() as f64) {
                return Err(format!("series {name} has a point beyond the names of the axis; add its name"));
            }
        }
        Ok(())
    }

    /// Chooses the axes by all values that both have a place for.
    fn axes(&self) -> Option<(Axis, Axis)> {
        let Style { is_log_x, is_log_y, has_zero_x, ref names } = self.style;
        // Zero alone needs no place apart from others.
        let has_other = self.series.iter().flat_map(|series| &series.points).any(|(x, _)| *x > 0.0);
        let x_scale = match (names.len(), is_log_x, has_zero_x) {
            (0, true, true) if !has_other => Scale::Linear,
            (0, false, _) => Scale::Linear,
            (0, true, false) => Scale::Log,
            (0, true, true) => Scale::LogAndZero,
            (count, ..) => Scale::Names(count),
        };
        let y_scale = if is_log_y { Scale::Log } else { Scale::FromZero };
        let has_x = |x: f64| !is_log_x || x > 0.0 || has_zero_x && x == 0.0;
        let has_y = |y: f64| y != GAP && (!is_log_y || y > 0.0);
        let all = || self.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, *point)));
        // A corner of a range may be infinite in one direction and still counts in the other. A
        // histogram reaches as far as its buckets, empty ones too.
        let counts = |kind: Kind| matches!(kind, Kind::Steps | Kind::PaperRange);
        let x = all().filter(|(series, (_, y))| has_y(*y) || counts(series.kind)).map(|(_, (x, _))| x);
        let y = all().filter(|(_, (x, _))| has_x(*x) || x.is_infinite()).map(|(_, (_, y))| y);
        let intervals = self.series.iter().flat_map(|series| series.intervals.iter().flat_map(|(a, b)| [*a, *b]));
        Some((Axis::new(x_scale, x)?, Axis::new(y_scale, y.chain(intervals))?))
    }

    fn draw(&self) -> Result<String, String> {
        self.check()?;
        let (x, y) = self.axes().ok_or("there is no point to draw; leave the plot out or measure one")?;
        let drawn: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let all: Vec<Series> = drawn.iter().map(|series| (*series).clone()).collect();
        let looks = look::looks(&all);
        let layout = Layout::of(self, &drawn, &y);
        let mut svg = String::new();
        let canvas = Canvas::new(&mut svg, &layout)?;
        canvas.axes(self, &x, &y)?;
        // Ranges lie below everything else, and the paper's points above.
        let order = |kind: Kind| match kind {
            Kind::PaperRange => 0,
            Kind::Paper => 2,
            _ => 1,
        };
        for turn in 0..3 {
            let of_turn = drawn.iter().enumerate().filter(|(_, series)| order(series.kind) == turn);
            for (number, _) in of_turn {
                canvas.series(&drawn, number, &looks[number], &x, &y)?;
            }
        }
        canvas.legend(&drawn, &looks)?;
        canvas.finish()?;
        Ok(svg)
    }
}

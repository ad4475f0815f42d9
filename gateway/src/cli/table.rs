//! Plain tables for people: columns padded to their widest cell.

/// A table that prints itself.
#[derive(Debug)]
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// On which side of a cell the blanks go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

impl Table {
    /// A table with a head row.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table {
            align: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.align.len(), "a row has as many cells as the table has columns");
        self.rows.push(cells);
    }

    /// The text, one line per row, without blanks at line ends.
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.align.len())
            .map(|c| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).zip(&self.align).map(|((cell, &width), align)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

/// Bytes for people: `12.3 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table = Table::new(&[("NAME", Align::Left), ("N", Align::Right)]);
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["longer".into(), "7".into()]);
        assert_eq!(table.render(), "NAME     N\na       10\nlonger   7\n");
    }

    #[test]
    fn bytes_choose_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }
}

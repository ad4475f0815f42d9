//! `/`: a page that shows topics, their ranges and what became of them. Its three files are in the program and load nothing
//! from elsewhere; it reads the JSON API like everybody.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// What a browser may load and run for the page: its own two files and the API, and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`: the page for browsers, for others a list of what there is.
pub async fn index(headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.contains("text/html") {
        file("text/html; charset=utf-8", include_str!("page/index.html"))
    } else {
        PATHS.into_response()
    }
}

/// `GET /page.css`.
pub async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// `GET /page.js`.
pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another version of the program has another page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

const PATHS: &str = "rangeway\n\n\
    /  in a browser: topics and their ranges, live\n\
    /healthz  the process lives\n\
    /readyz   everything is served, or what is not\n\
    /metrics  Prometheus text\n\
    /api/v1/topics  GET, POST\n\
    /api/v1/topics/NAME  GET, PATCH, DELETE\n\
    /api/v1/topics/NAME/ranges  GET\n\
    /api/v1/topics/NAME/ranges/explain  GET\n\
    /api/v1/topics/NAME/ranges/R/split  POST\n\
    /api/v1/topics/NAME/ranges/merge  POST\n\
    /api/v1/operations  GET\n\
    /api/v1/operations/ID  GET\n\
    /api/v1/operations/ID/abort  POST\n\
    /api/v1/cluster  GET\n";

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    const FILES: [&str; 3] =
        [include_str!("page/index.html"), include_str!("page/page.css"), include_str!("page/page.js")];

    async fn asked_with(accept: Option<&'static str>) -> (HeaderMap, String) {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        }
        let (parts, body) = index(headers).await.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn browsers_get_the_page_and_others_a_list_of_paths() {
        let (headers, page) = asked_with(Some("text/html,application/xhtml+xml,*/*;q=0.8")).await;
        assert!(page.starts_with("<!doctype html>"), "{page}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        for accept in [None, Some("*/*"), Some("application/json")] {
            let (headers, list) = asked_with(accept).await;
            assert!(list.contains("\n/api/v1/operations  GET\n"), "{list}");
            assert_eq!(headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        }
    }

    /// What the policy forbids would not work, and nothing of a name may become markup.
    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_writes_no_markup() {
        for file in FILES {
            for word in
                ["http:", "https:", "src=\"//", "@import", "url(", " style=", "onclick", "<style", "eval("]
            {
                assert!(!file.contains(word), "{word}");
            }
            for markup in [".innerHTML =", "outerHTML", "insertAdjacent", "document.write"] {
                assert!(!file.contains(markup), "{markup}");
            }
        }
    }
}

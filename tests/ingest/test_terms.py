from ingest.terms import terms


def test_terms_of_each_script() -> None:
    assert terms("HTTPServer v2") == ["httpserver", "http", "server", "v2", "v", "2"]
    assert terms("カタカナ 휴가일") == ["カタ", "タカ", "カナ", "휴가", "가일"]
    assert terms("几天") == ["几天"]
    assert terms("C++ and C#") == ["c++", "and", "c#"]

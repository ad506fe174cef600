module megadp

go 1.19
